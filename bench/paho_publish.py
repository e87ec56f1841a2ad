"""One signed event by paho, as the seeds' publish_event.py does it, to measure against: connect, wait for the CONNACK,
publish with QoS 1, wait for the PUBACK, disconnect.

It is told the job's key and its number, where the seeds read a registry, and has no command line to parse; both
would make it slower.
"""

import hashlib
import hmac
import json
import os
import sys
import threading
from datetime import UTC, datetime
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion


def main(job_id: str, seq: str, detail: str) -> None:
    connected = threading.Event()
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.on_connect = lambda *_: connected.set()
    client.username_pw_set(os.environ["MQTT_USERNAME"], os.environ["MQTT_PASSWORD"])
    client.connect(os.environ["MQTT_BROKER"], int(os.environ["MQTT_PORT"]))
    client.loop_start()
    if not connected.wait(10):
        raise SystemExit("no CONNACK")
    message = client.publish(f"python/mqtt/jobs/{job_id}/events", _payload(job_id, int(seq), detail), qos=1)
    message.wait_for_publish(5)
    if not message.is_published():
        raise SystemExit("no PUBACK")
    client.disconnect()
    client.loop_stop()


def _payload(job_id: str, seq: int, detail: str) -> bytes:
    payload: dict[str, Any] = {
        "schema_version": 1,
        "seq": seq,
        "job_id": job_id,
        "event": "progress",
        "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "detail": detail,
        "data": {"attempt": 1},
    }
    signed = hmac.new(os.environ["BENCH_TOKEN"].encode(), _canonical(payload), hashlib.sha256)
    payload["data"]["hmac_sig"] = signed.hexdigest()
    return _canonical(payload)


def _canonical(payload: dict) -> bytes:
    return json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


if __name__ == "__main__":
    main(*sys.argv[1:])
