"""The scripted model plays the same script in every protocol."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from truth.scripted_model import Fail, Say, ScriptedModel, bash, cue

SCRIPT = [[Fail(529, "Overloaded", times=1), bash("echo x")], [Say("Done.")]]


def anthropic(*said):
    roles = [{"role": role, "content": text} for role, text in said]
    return "/v1/messages", {"messages": roles, "tools": [{"name": "Bash"}], "stream": True}


def responses(*said):
    items = [{"type": "function_call"} if role == "assistant" else {"role": role, "content": [{"text": text}]}
             for role, text in said]  # fmt: skip
    return "/v1/responses", {"input": items, "tools": [{"name": "exec_command"}], "stream": True}


def chat(*said):
    roles = [{"role": role, "content": text} for role, text in said]
    tools = [{"type": "function", "function": {"name": "run_shell_command"}}]
    return "/v1/chat/completions", {"messages": roles, "tools": tools, "stream": True}


def gemini(*said):
    roles = [{"role": "model" if role == "assistant" else role, "parts": [{"text": text}]} for role, text in said]
    tools = [{"functionDeclarations": [{"name": "run_shell_command"}]}]
    return "/v1beta/models/m:streamGenerateContent?alt=sse", {"contents": roles, "tools": tools}


@pytest.fixture
def model():
    model = ScriptedModel({"s": SCRIPT})
    yield model
    model.close()


def ask(model, path, body):
    request = urllib.request.Request(model.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("protocol", [anthropic, responses, chat, gemini])
def test_a_script_fails_calls_the_shell_and_speaks(model, protocol):
    first = [("user", f"Do it. {cue('s')}")]
    status, text = ask(model, *protocol(*first))
    assert (status, "Overloaded" in text) == (529, True)
    status, text = ask(model, *protocol(*first))
    assert (status, "echo x" in text) == (200, True)
    status, text = ask(model, *protocol(*first, ("assistant", ""), ("user", "the result")))
    assert (status, "Done." in text) == (200, True)
    status, text = ask(model, *protocol(("user", "No cue.")))
    assert "That is all." in text
    assert [(asked.script, asked.step, asked.answer) for asked in model.log] == [
        ("s", 0, "error 529"), ("s", 0, "shell"), ("s", 1, "say"), (None, 0, "say")
    ]  # fmt: skip
    assert model.log[2].text == "the result"


def test_a_request_without_tools_is_answered_apart(model):
    path, body = chat(("user", f"A title for: {cue('s')}"))
    status, text = ask(model, path, body | {"tools": [], "stream": False})
    assert (status, json.loads(json.loads(text)["choices"][0]["message"]["content"])["title"]) == (200, "a row")
    assert [asked.step for asked in model.log] == [-1]
