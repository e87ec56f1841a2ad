"""Record what a runner hears from its agent, and what it answers, with times: a JSON array per line.

[time, "hook" or "telemetry", number, body], [time, "lost", number], [time, "tail", name, line],
[time, "line", line], [time, "event", event] of opencode's server,
[time, "asked", key], [time, "answer", key, answer], [time, "end_turn", turn, text], [time, "say", text],
[time, "signal", class, fields, source] of the runner's own, [time, "job", mark]

Of a channel that is replayed by its signals, not by its messages: [time, "heard", class, fields, source]
"""

import json
import os
import threading
import time

# Of the lines of a transcript, or of the log of errors, those that say something.
_WORDS = (
    b"[Request interrupted by user",
    b"User rejected tool use",
    b'"isApiErrorMessage":true',
    b"API error (attempt",
)


def record(path: str) -> None:
    from importlib import import_module

    from baton.channels import acp, claude_hooks, claude_stream, opencode, opencode_events, tail
    from baton.channels.find import CHANNELS
    from baton.sessions import work

    lock = threading.Lock()
    numbers: dict[int, int] = {}

    def write(*what: object) -> None:
        line = json.dumps([round(time.monotonic(), 3), *what], default=lambda value: value.as_dict())
        with lock, open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def before(owner: type, name: str, note) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments, **named):
            note(*arguments, **named)
            return original(*arguments, **named)

        setattr(owner, name, wrapped)

    def received(_, exchange) -> None:
        numbers[id(exchange)] = len(numbers)
        kind = "telemetry" if "logs" in exchange.path else "hook"
        write(kind, numbers[id(exchange)], exchange.body.decode(errors="replace"))

    def opened(original, *, by_messages: bool):
        def wrapped(self, hear):
            def listen(heard) -> None:
                if not by_messages:
                    write("heard", type(heard.signal).__name__, heard.signal.as_dict(), heard.source)
                elif type(heard.signal).__name__ == "Asked":
                    write("asked", heard.signal.key)
                elif type(heard.signal).__name__ == "Blocked" or heard.source == "registry":
                    write("signal", type(heard.signal).__name__, heard.signal.as_dict(), heard.source)
                hear(heard)

            return original(self, listen)

        return wrapped

    def followed(original):
        def wrapped(self):
            lines = original(self)
            for line in lines:
                if any(word in line for word in _WORDS):
                    write(
                        "tail",
                        "transcript" if self.path.endswith(".jsonl") else "errors",
                        line.decode(errors="replace"),
                    )
            return lines

        return wrapped

    hooks = claude_hooks.ClaudeHooks
    before(hooks, "_receive", received)
    before(hooks, "_lose", lambda _, exchange: write("lost", numbers.get(id(exchange), -1)))
    tail.Tail.read = followed(tail.Tail.read)
    for stream in (claude_stream.ClaudeStream, acp.Acp):
        before(stream, "_signals", lambda _, line: write("line", line))
    before(opencode_events.OpencodeEvents, "read", lambda _, event: write("event", json.dumps(event)))
    by_messages = (hooks, claude_stream.ClaudeStream, acp.Acp, opencode.OpencodeChannel)
    channels = {getattr(import_module(f"baton.channels.{module}"), name) for module, name in CHANNELS.values()}
    # A class that inherits a method is given one of its own, around the original: nothing is noted twice.
    originals = [
        (each, name, getattr(each, name)) for each in channels for name in ("open", "answer", "end_turn", "say")
    ]
    for channel, name, original in originals:
        setattr(channel, name, original)
    for channel in channels:
        channel.open = opened(channel.open, by_messages=channel in by_messages)
        before(channel, "answer", lambda _, key, answer: write("answer", key, answer.as_dict()))
        before(channel, "end_turn", lambda _, turn, text: write("end_turn", turn, text))
        before(channel, "say", lambda _, text: write("say", text))
    before(
        work.Work, "note", lambda _, signal, source: write("signal", type(signal).__name__, signal.as_dict(), source)
    )
    before(work.Work, "begin", lambda _, job: write("job", None if job is None else job.job_id))
    write("runner", os.getpid())
