"""Run the user's local broker and write the configuration of a production broker.

It sends and receives no events: that is the task of transport."""
