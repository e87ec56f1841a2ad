"""Fuzzes what reads other people's bytes, guided by coverage (atheris).

    python tests/fuzz/fuzz.py [--seconds 20] [--seed N] [TARGET]    prints a figure a target; exit 1 if one is broken

What was found worth keeping lies in corpus/TARGET and is read by the ordinary tests too. An input that breaks a target
goes there at once; others that reach new code are left in build/fuzz, where the next run finds them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def run_inside(target: str, arguments: list[str]) -> None:
    """In a process of its own: libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["baton", "json"]):
        from targets import TARGETS
    atheris.Setup([sys.argv[0], *arguments], TARGETS[target])
    atheris.Fuzz()


def fuzz(target: str, seconds: int, seed: int) -> bool:
    corpus = os.path.join(HERE, "corpus", target)
    found = os.path.join(ROOT, "build", "fuzz", target)
    os.makedirs(found, exist_ok=True)
    done = _libfuzzer(
        target, f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=70000", "-timeout=10", "-rss_limit_mb=512",
        "-print_final_stats=1", f"-artifact_prefix={corpus}/", found, corpus,
    )  # fmt: skip
    ran = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    inputs = int(ran[1]) if ran else 0
    held = done.returncode == 0 and inputs > 0
    kept = len(os.listdir(corpus))
    print(
        f"fuzz {target}: {inputs:,} inputs in {seconds} s, {kept} kept before, {0 if held else 1} broke it"
        f" ({'held' if held else 'broken'})  [--seed {seed}]",
        flush=True,
    )
    if not held:
        print(done.stderr[-3000:], file=sys.stderr)
    return held


def _libfuzzer(target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, "--inside", target, *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=3600)


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        run_inside(sys.argv[2], sys.argv[3:])
    names = sorted(os.listdir(os.path.join(HERE, "corpus")))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="*", help=", ".join(names))
    parser.add_argument("--seconds", type=int, default=20, help="for each target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big") + 1)
    options = parser.parse_args()
    try:
        import atheris  # noqa: F401
    except ImportError:
        print("fuzz: atheris does not install here; the corpus is read by tests/unit/test_fuzz.py all the same")
        return 0
    held = [fuzz(target, options.seconds, options.seed) for target in options.target or names]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
