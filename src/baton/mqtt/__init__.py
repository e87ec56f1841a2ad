"""Events on the wire: a small publisher of our own, a subscriber on paho, both MQTT 3.1.1."""
