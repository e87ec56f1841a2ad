"""Send and receive events over MQTT: addresses, publisher, listener, subscription, TLS.

It announces what the registry holds. It never decides what became of a job."""
