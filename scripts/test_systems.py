"""Run the README's two commands on other systems, as an ordinary user, and print one table.

    scripts/test_systems.py [SYSTEM ...]       bookworm trixie sid here; sid:3.15 is one Python of a system
    scripts/test_systems.py --enter SYSTEM     open a shell of that user in a root that was made before

A system is the name of a Debian release: debootstrap makes a root of it in build/systems, from the mirror of this
machine, with each Python from 3.11 on that the release has. `here` is this machine and this user, with each Python on
PATH and in pyenv. Each run clones the last commit, and its whole output lies beside the root. The table shows every run
of this commit; the roots stay until the next run of their system.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import pythons

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SYSTEMS = os.path.join(ROOT, "build", "systems")
RESULTS = os.path.join(SYSTEMS, "results.json")
HERE = "here"
USER = "tester"
UID = 4242
LEAST_PYTHON = (3, 11)
LIMIT_SEC = 3600
# What a newcomer has before the first command. `make test` installs the rest.
PACKAGES = "ca-certificates,git,make,procps,python3,python3-venv,sudo,tmux"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_CERTIFICATE_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
# A chroot will not do: the kernel refuses user namespaces inside one. The mounts go with the last process.
_ENTER = """
mount --make-rprivate / && mount --bind "$1" "$1" && cd "$1"
mount -t proc proc proc && mount -t sysfs sys sys && mount --rbind /dev dev && mkdir -p .outside
pivot_root . .outside && cd / && umount -l /.outside
su - "$2" -c "$3"; exit $?  # not exec: the first process reaps those that lose their parent
"""


class Run(NamedTuple):
    system: str
    python: str
    dependencies: str  # "locked" or "lowest"


class Failed(Exception):
    """A step of the preparation failed; the text says which and why."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", default=[])
    parser.add_argument("--enter", metavar="SYSTEM", help="open a shell of the ordinary user in the root of SYSTEM")
    parser.add_argument("--again", action="store_true", help="use the roots that were made before")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("test-systems: only root can make the root of another system; run it with sudo", file=sys.stderr)
        return 1
    if options.enter:
        return subprocess.call(entering(options.enter, "exec bash -l"))
    if shutil.which("debootstrap") is None:
        print("test-systems: debootstrap is missing: apt-get install debootstrap", file=sys.stderr)
        return 1
    os.makedirs(SYSTEMS, exist_ok=True)
    commit = git("rev-parse", "--short", "HEAD")
    if git("status", "--porcelain", "--untracked-files=no"):
        print("test-systems: changes that are not committed are not tested", file=sys.stderr)
    wrong = False
    for named in options.systems or ["bookworm", "trixie", "sid", HERE]:
        system, _, only = named.partition(":")
        try:
            for run in prepare(system, again=options.again):
                if only not in ("", run.python):
                    continue
                result = carry_out(run, commit)
                wrong |= not result["ok"]
                record(commit, run, result)
        except Failed as failed:
            print(f"{system}: {failed}", flush=True)
            wrong = True
    print_table(commit)
    return int(wrong)


def git(*arguments: str) -> str:
    return subprocess.check_output(["git", "-C", ROOT, *arguments], text=True).strip()


# -- the roots ---------------------------------------------------------------------------------------------------------


def entering(system: str, command: str, user: str = USER) -> list[str]:
    """Return the words of a command that runs as `user` in the root of `system`."""
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    return [*unshare, "bash", "-euc", _ENTER, "bash", root_of(system), user, command]


def root_of(system: str) -> str:
    return os.path.join(SYSTEMS, system)


def prepare(system: str, *, again: bool) -> Iterator[Run]:
    """Make the root of a system, and yield the runs in it."""
    if system == HERE:
        for version in pythons.find_all():
            yield Run(HERE, version, "locked")
        return
    if not re.fullmatch("[a-z]+", system):
        raise Failed("not the name of a Debian release")
    began = time.monotonic()
    if not (again and os.path.isdir(root_of(system))):
        make_root(system)
        print(f"{system}: made in {time.monotonic() - began:.0f} s", flush=True)
    bundle = os.path.join(root_of(system), "srv", "baton.bundle")
    subprocess.run(["git", "-C", ROOT, "bundle", "create", "--quiet", bundle, "HEAD"], check=True)
    os.chmod(bundle, 0o644)
    versions = output_in(system, "ls /usr/bin").split()
    found = sorted(
        (int(each.group(1)) for name in versions if (each := re.fullmatch(r"python3\.(\d+)", name))), reverse=True
    )
    for minor in reversed(found):
        if (3, minor) >= LEAST_PYTHON:
            yield Run(system, f"3.{minor}", "locked")
    if system == "bookworm":  # the oldest Python has the oldest wheels
        yield Run(system, "3.11", "lowest")


def make_root(system: str) -> None:
    root = root_of(system)
    if os.path.isdir(root):
        subprocess.run(["rm", "-rf", "--one-file-system", root], check=True)
    check(system, "made", ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", system, root, mirror()])
    for path in ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/npmrc", CERTIFICATES):
        if os.path.exists(path):  # the root gets packages as this machine does
            shutil.copyfile(path, root + path)
    exports = " ".join(f"{name}={CERTIFICATES}" for name in _CERTIFICATE_VARIABLES)
    write(root, "/etc/profile.d/packages.sh", f"export LANG=C.UTF-8 PIP_DEFAULT_TIMEOUT=180 {exports}\n")
    write(root, "/etc/apt/apt.conf.d/99mirror", 'Acquire::Check-Valid-Until "false";\n')  # a mirror may lag behind
    as_root = f"""
        useradd --create-home --uid {UID} --shell /bin/bash {USER}
        echo '{USER} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/{USER}
        apt-get update -qq
        others=$(apt-cache pkgnames python3. | grep -E '^python3[.][0-9]+-venv$') || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $others
    """
    check(system, "given a user and its Pythons", entering(system, f"set -e; {as_root}", "root"))


def mirror() -> str:
    """Return the address from which this machine gets its Debian packages."""
    for path in ["/etc/apt/sources.list", *sorted(glob.glob("/etc/apt/sources.list.d/*"))]:
        try:
            with open(path) as file:
                lines = [line.split() for line in file]
        except OSError:
            continue
        for words in lines:
            if words and words[0] in ("URIs:", "deb"):
                for word in words[1:]:
                    if word.startswith(("http:", "https:")) and word.rstrip("/").endswith("/debian"):
                        return word
    raise Failed("the apt sources of this machine name no mirror of Debian")


def write(root: str, path: str, text: str) -> None:
    with open(root + path, "w") as file:
        file.write(text)


def check(system: str, what: str, command: list[str]) -> None:
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=LIMIT_SEC,
    )  # fmt: skip
    if done.returncode != 0:
        raise Failed(f"cannot be {what}: {' / '.join(done.stdout.strip().splitlines()[-3:])}")


def output_in(system: str, command: str) -> str:
    words = ["sh", "-c", command] if system == HERE else entering(system, command)
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=LIMIT_SEC).stdout.strip()


# -- the two commands --------------------------------------------------------------------------------------------------


def carry_out(run: Run, commit: str) -> dict[str, object]:
    """Clone, `make demo`, `make test`, and say what came of it."""
    result: dict[str, object] = {"ok": True}
    result["tmux"] = output_in(run.system, "tmux -V").removeprefix("tmux ")
    result["git"] = output_in(run.system, "git --version").removeprefix("git version ")
    name = f"baton-{run.python}" + ("-lowest" if run.dependencies == "lowest" else "")
    folder = os.path.join(SYSTEMS, HERE, name) if run.system == HERE else name
    source = ROOT if run.system == HERE else "/srv/baton.bundle"
    python = pythons.find_all()[run.python] if run.system == HERE else f"python{run.python}"
    old = shlex.quote(folder) + ("" if run.system == HERE else " /tmp/pytest-of-*")  # pytest would remove it slowly
    clone = f"rm -rf {old} && git clone --quiet {shlex.quote(source)} {shlex.quote(folder)}"
    steps = {"clone": clone}
    for step, target in (("demo", "demo"), ("test", "test" if run.dependencies == "locked" else "test-lowest")):
        steps[step] = f"cd {shlex.quote(folder)} && make {target} PYTHON={python}"
    log = os.path.join(SYSTEMS, f"{run.system}-{name}.log")
    with open(log, "wb"):
        pass
    for step, command in steps.items():
        began = time.monotonic()
        with open(log, "ab") as file:
            begin = file.tell()
            words = ["sh", "-c", command] if run.system == HERE else entering(run.system, command)
            try:
                code = subprocess.run(
                    words, check=False, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                    timeout=LIMIT_SEC,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = 124
        with open(log, errors="replace") as file:
            file.seek(begin)
            lines = file.read().splitlines()
        spent = f"{time.monotonic() - began:.0f} s"
        result[step] = f"{'ok' if code == 0 else f'exit {code}'}, {spent}"
        if step == "test":
            result["tests"] = next((line for line in reversed(lines) if re.search(r"\d+ (passed|failed)", line)), "")
            result["left out"] = [line for line in lines if line.startswith("not proved here: ")]
        print(f"{run.system} {run.python} {run.dependencies}: {step} {result[step]}", flush=True)
        if code != 0:
            result["ok"] = False
            print("\n".join(f"    {line}" for line in lines[-12:]), f"    ... see {os.path.relpath(log)}", sep="\n")
            break
    return result


# -- the table ---------------------------------------------------------------------------------------------------------


def read_results() -> dict[str, dict[str, dict[str, object]]]:
    try:
        with open(RESULTS) as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return {}


def record(commit: str, run: Run, result: dict[str, object]) -> None:
    results = read_results()
    results.setdefault(commit, {})[" ".join(run)] = result
    with open(RESULTS, "w") as file:
        json.dump(results, file, indent=1)


def print_table(commit: str) -> None:
    rows: list[tuple[str, ...]] = [
        ("system", "Python", "dependencies", "tmux", "git", "make demo", "make test", "tests", "left out")
    ]
    left_out = []
    for name, result in sorted(read_results().get(commit, {}).items()):
        system, python, dependencies = name.split()
        missing = result.get("left out") or []
        assert isinstance(missing, list)
        left_out += [f"{system} {python}: {line}" for line in missing]
        counts = re.sub(r"[=]+ ?| in .*", "", str(result.get("tests", "")))
        cells = (str(result.get(each, "")) for each in ("tmux", "git", "demo", "test"))
        rows.append((system, python, dependencies, *cells, counts, str(len(missing))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print(f"\n{commit}")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(*left_out, sep="\n")


if __name__ == "__main__":
    sys.exit(main())
