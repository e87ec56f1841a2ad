"""The protocols of model services, each as much of it as the agent programs need."""
