"""Record what a runner hears from its agent, and what it answers, with times: a JSON array per line.

[time, "hook" or "telemetry", number, body], [time, "lost", number], [time, "tail", name, line],
[time, "line", line],
[time, "asked", key], [time, "answer", key, answer], [time, "end_turn", turn, text], [time, "say", text],
[time, "signal", class, fields, source] of the runner's own, [time, "job", mark]
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
    from baton.channels import claude_hooks, claude_stream, tail
    from baton.sessions import work

    lock = threading.Lock()
    numbers: dict[int, int] = {}

    def write(*what: object) -> None:
        line = json.dumps([round(time.monotonic(), 3), *what])
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

    def opened(original):
        def wrapped(self, hear):
            def listen(heard) -> None:
                if type(heard.signal).__name__ == "Asked":
                    write("asked", heard.signal.key)
                elif type(heard.signal).__name__ == "Blocked":
                    write("signal", "Blocked", heard.signal.as_dict(), heard.source)
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

    hooks, stream = claude_hooks.ClaudeHooks, claude_stream.ClaudeStream
    before(hooks, "_receive", received)
    before(hooks, "_lose", lambda _, exchange: write("lost", numbers.get(id(exchange), -1)))
    tail.Tail.read = followed(tail.Tail.read)
    before(stream, "_signals", lambda _, line: write("line", line))
    for channel in (hooks, stream):
        channel.open = opened(channel.open)
        before(channel, "answer", lambda _, key, answer: write("answer", key, answer.as_dict()))
        before(channel, "end_turn", lambda _, turn, text: write("end_turn", turn, text))
    before(stream, "say", lambda _, text: write("say", text))
    before(
        work.Work, "note", lambda _, signal, source: write("signal", type(signal).__name__, signal.as_dict(), source)
    )
    before(work.Work, "begin", lambda _, job: write("job", None if job is None else job.job_id))
    write("runner", os.getpid())
