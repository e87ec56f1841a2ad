"""Know the programs whose further words are a program: with a star, a rule for them would allow every program."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def _each(text: str) -> list[tuple[str, ...]]:
    return [tuple(each.split()) for each in text.replace("\n", " ").split(",")]


# No star may follow these words, wherever it stands: only the program knows which of its words is the next program.
_RUN_OTHERS = [
    *_each("""sh, bash, rbash, dash, ash, zsh, rzsh, ksh, mksh, rksh, oksh, yash, posh, fish, csh, tcsh, elvish, nu,
        xonsh, pwsh, powershell, busybox, toybox, eval, exec, command, builtin, source, ., coproc, time, trap"""),
    # as another user, or with another priority, place, limit, session or terminal
    *_each("""env, sudo, doas, su, run0, pkexec, runuser, setpriv, gosu, su-exec, capsh, sg, nohup, nice, ionice, chrt,
        taskset, numactl, prlimit, softlimit, cgexec, timeout, setsid, stdbuf, setarch, linux32, linux64, i386, x86_64,
        arch, chroot, unshare, nsenter, proot, fakeroot, fakechroot, bwrap, firejail, minijail0, systemd-run,
        systemd-inhibit, systemd-nspawn, dbus-run-session, dbus-launch, xvfb-run, xinit, startx, start-stop-daemon,
        daemonize, daemon, flock, chronic, ifne, tmux, screen, dtach, abduco, zellij, script, unbuffer, rlwrap, expect,
        socat, at, batch, crontab, caffeinate, ld.so, ld-linux.so, ld-linux-x86-64.so, ssh-agent, gpg-agent, setlock,
        envdir, envuidgid, setuidgid, chpst, s6-setuidgid, catchsegv, logsave"""),
    # again and again, for each word, or under a debugger
    *_each("""xargs, parallel, watch, entr, watchexec, nodemon, run-parts, hyperfine, concurrently, forever, pm2,
        strace, ltrace, gdb, cgdb, lldb, valgrind, heaptrack, rr, bpftrace, perf record, perf stat, perf trace"""),
    # on other machines, and in containers
    *_each("""ssh, autossh, mosh, sshpass, rsh, adb, vagrant ssh, gcloud compute ssh, heroku run, fly ssh"""),
    *_each("""docker run, docker exec, docker create, docker debug, docker container run, docker container exec,
        docker container create, docker compose run, docker compose exec, docker-compose run, docker-compose exec,
        podman run, podman exec, podman create, podman container run, podman container exec, podman container create,
        podman compose run, podman compose exec, podman-compose run, podman-compose exec, nerdctl run, nerdctl exec,
        nerdctl compose run, nerdctl compose exec, buildah run, runc, crun, crictl exec, ctr run, ctr task exec,
        kubectl run, kubectl exec, kubectl debug, oc run, oc exec, oc rsh, oc debug, lxc exec, lxc-attach, lxc-execute,
        incus exec, distrobox, distrobox-enter, toolbox run, toolbox enter, flatpak run, flatpak-spawn, snap run,
        machinectl shell, ip netns exec, ip vrf exec, apptainer, singularity, devcontainer exec"""),
    # what is not installed is fetched, and run
    *_each("""npx, npm exec, npm x, npm explore, npm init, npm innit, npm create, pnpx, pnpm dlx, pnpm create, yarn dlx,
        yarn create, yarn exec, yarn node, bunx, bun x, bun exec, bun create, corepack, uvx, uv tool run, pipx run,
        pixi exec, hatch run, tox exec, conda run, mamba run, micromamba run, nix run, nix shell, nix develop,
        nix-shell, guix shell, devbox run, deno eval, deno x, dotnet exec, dotnet tool run, dnx, jbang, coursier launch,
        cs launch"""),
    # in the environment of a project or of a store of secrets
    *_each("""mise exec, mise x, asdf exec, rbenv exec, pyenv exec, nodenv exec, volta run, fnm exec, direnv exec,
        dotenv, dotenvx, op run, doppler run, aws-vault exec, chamber exec, teller run, infisical run, lerna exec,
        nx exec"""),
    ("sqlite3",),  # by a word such as `.system ls`
]
# The next word of the rule is the program, or the script, and what follows belongs to that.
_RUN_NEXT = [
    *_each("""uv run, poetry run, pdm run, pipenv run, rye run, pixi run, bundle exec, pnpm exec, go run, deno run,
        bun run, bun, python, python -m, pypy, pypy -m, py, py -m, ipython, perl, ruby, node, nodejs, tsx, ts-node, php,
        lua, luajit, tclsh, wish, Rscript, julia, guile, elixir, escript, groovy, scala, swift, java, java -jar,
        osascript"""),
    *_each("sed, sed -n, sed -E, sed -i"),  # by a script such as `1e ls`
]


def runs_others(words: Sequence[str]) -> bool:
    """Return whether these words, with any words behind them, may start a program that they do not name."""
    if not words:
        return True
    name = words[0].rpartition("/")[2]
    return any(_runs_others((program, *words[1:])) for program in {name, name.rstrip("0123456789.")})


def _runs_others(words: Sequence[str]) -> bool:
    if any(_may_become(words, runner) for runner in _RUN_OTHERS):
        return True
    found = [runner for runner in _RUN_NEXT if _may_become(words, runner)]
    if not found:
        return False
    whole = [runner for runner in found if tuple(words[: len(runner)]) == runner]
    program = words[max(map(len, whole)) :] if whole else ()
    return not program or program[0].startswith("-") or runs_others(program)


def _may_become(words: Sequence[str], runner: Sequence[str]) -> bool:
    """Return whether words are those of a runner, or can become them with further ones. After an option, this is not
    known: the next word may be its value."""
    for word, wanted in zip(words, runner, strict=False):
        if word != wanted:
            return word.startswith("-")
    return True
