"""G1: remove one guard at a time from a copy of the sources, and require that a test fails.

    python tests/guards/remove_guards.py              all of them
    python tests/guards/remove_guards.py signature    those whose name contains this word; --list prints the names

A guard is a line of src/baton marked `# guard: NAME`; a mark that is missing or stands twice is a failure. A guard that
no test notices is a missing test. The copy lies in a temporary folder, with an interpreter of its own that imports
`baton` from there and everything else from where this interpreter does.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from guards.marks import Mark, Rule, condition, drop, find_marks, insert_before, replace, without_guard

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TIMEOUT_SEC = 240
AT_ONCE = 2


class Guard(NamedTuple):
    name: str  # of the mark in the sources
    rule: Rule  # what becomes of the marked statement
    tests: str  # at least one of these must fail without the guard


_HOSTILE = "tests/system/test_hostile_content.py"
_OF_OTHERS = "tests/system/test_files_of_others.py"
_REPOSITORY = "tests/security/test_hostile_repository.py"
_WORKTREES = "tests/integration/test_git_worktrees.py"
_KEPT = "tests/integration/test_work_is_kept.py"
_CLAUDE_HOOKS = "tests/unit/test_claude_hooks.py"
_COMMANDS = "tests/system/test_worktree_commands.py"
_WEB = "tests/security/test_web_board.py"
_MCP_LIMITS = "tests/security/test_mcp_client_limits.py"
_TYPING = "tests/security/test_typing_is_answering.py"
_CALLERS = "tests/system/test_callers.py"
_MCP = "tests/security/test_hostile_mcp_client.py"
_ARGUMENTS = "tests/unit/test_tool_arguments.py"
GUARDS = (
    Guard("event-signature", condition("False"), "tests/unit/test_wire.py"),
    Guard("payload-size", condition("False"), "tests/unit/test_wire.py"),
    Guard("duplicate-keys", condition("False"), "tests/unit/test_wire.py"),
    Guard("payload-depth", condition("False"), "tests/unit/test_wire.py"),
    Guard("no-key-in-payload", condition("not isinstance(data, dict)"), "tests/unit/test_wire.py"),
    Guard("event-topic", condition("False"), "tests/integration/test_subscriber.py -k topic_of_another_job"),
    Guard("standing-still", condition("False"), "tests/unit/test_awake_clock.py"),
    Guard(
        "idle-clock",
        insert_before("if messages: self._last_news = self._monotonic()"),
        "tests/integration/test_subscriber.py -k replays_do_not_feed",
    ),
    Guard(
        "acp-option", condition("False"), "tests/unit/test_acp_channel.py -k 'without_its_option or other_direction'"
    ),
    Guard(
        "acp-wider-option", replace(r"not is_plain or", "True or"), "tests/unit/test_acp_channel.py -k ways_to_allow"
    ),
    Guard("acp-turn", condition("False"), "tests/unit/test_acp_channel.py -k outside_of_a_turn"),
    Guard("void-verification", condition("False"), "tests/system/test_runner_signals.py -k void"),
    Guard("open-work", condition("False"), "tests/system/test_runner_signals.py -k publish_is_refused"),
    Guard("link-out-of-the-skills", condition("False"), "tests/system/test_skills.py -k link_that_leaves_the_folder"),
    Guard("own-settings-of-an-agent", condition("False"), "tests/system/test_server_install.py -k own_configuration"),
    Guard("settings-changed-meanwhile", condition("False"), "tests/system/test_server_install.py -k user_reads"),
    Guard("settings-kept", condition("False"), "tests/unit/test_server_entry.py -k move_to_another_table"),
    Guard("uninstall-inside", condition("not os.path.lexists(path)"), "tests/system/test_skills.py -k uninstall"),
    Guard("codex-trust", condition("False"), "tests/unit/test_codex_protocol.py -k permission_to_write"),
    Guard(
        "codex-shell", replace(r"words\[0\] in _SHELLS", "True"), "tests/unit/test_codex_protocol.py -k as_the_model"
    ),
    Guard("codex-typed-text", condition("False"), "tests/unit/test_codex_protocol.py -k shown_as_typed_text"),
    Guard("codex-question-id", condition("False"), "tests/unit/test_codex_protocol.py -k under_the_same_id"),
    Guard("codex-socket-owner", condition("False"), "tests/integration/test_codex_server.py -k another_user"),
    Guard("prune-link", condition("False"), "tests/system/test_prune.py -k baton_did_not_write"),
    Guard("prune-foreign-file", condition("False"), "tests/system/test_prune.py -k baton_did_not_write"),
    Guard("prune-shared-logs", condition("True"), "tests/system/test_prune.py -k another_registry"),
    Guard("folder-that-reappears", condition("False"), "tests/system/test_prune_homes.py -k last_moment"),
    Guard("removed-lock-file", condition("locked"), "tests/system/test_prune.py -k file_that_was_removed"),
    Guard("lines-of-another-tool", condition("False"), "tests/system/test_logs_of_other_tools.py -k change_of_the_old"),
    Guard(
        "chain-of-a-script",
        condition("reserved := None"),
        "tests/system/test_logs_of_other_tools.py -k break_the_chain",
    ),
    Guard("time-of-a-script", condition("False"), "tests/system/test_logs_of_other_tools.py -k time_before_the_last"),
    Guard("event-attempt", condition("False"), "tests/unit/test_watch.py"),
    Guard("event-number", condition("False"), "tests/unit/test_watch.py"),
    Guard("write-attempt", condition("False"), "tests/contract/test_registry.py"),
    Guard("holder-attempt", condition("False"), "tests/contract/test_requests.py"),
    Guard("most-open-requests", condition("False"), "tests/contract/test_requests.py"),
    Guard("request-answered-once", condition("True"), "tests/unit/test_request_rules.py"),
    Guard("message-counted-once", replace(r"messages\.get\(.*\) or new", "new"), "tests/unit/test_spending.py"),
    Guard("unknown-cost", condition("False"), "tests/unit/test_spending.py"),
    Guard("budget-pause", condition("False"), "tests/unit/test_activity.py"),
    Guard("request-id-in-path", condition("isinstance(value, str)"), "tests/contract/test_requests.py"),
    Guard("terminal-job-event", condition("False"), "tests/contract/test_registry.py"),
    Guard("status-transition", condition("False"), "tests/contract/test_registry.py"),
    Guard("upgrade-with-living-runners", condition("(runners := [])"), "tests/system/test_homes_of_0_1_0.py -k lives"),
    Guard("upgrade-with-running-jobs", condition("False"), "tests/system/test_homes_of_0_1_0.py -k upgrade"),
    Guard("wal-at-its-path", condition("False"), "tests/crash/test_removed_log.py"),
    Guard("disputed-job", condition("False"), "tests/crash/test_lost_changes.py"),
    Guard("blocked-job", condition("False"), "tests/contract/test_order_of_jobs.py -k 'every_claim and not picked'"),
    Guard("failed-predecessor", condition("ended is not None"), "tests/contract/test_order_of_jobs.py -k fails"),
    Guard("cycle-in-a-batch", condition("False"), "tests/contract/test_order_of_jobs.py -k circle"),
    Guard(
        "prune-named-job", replace(r" if row\[0\] not in named", ""), "tests/contract/test_order_of_jobs.py -k names"
    ),
    Guard("contradicted-claim", condition("False"), "tests/crash/test_lost_changes.py"),
    Guard("claim-while-draining", condition("False"), "tests/crash/test_migrate_while_running.py"),
    Guard("migrate-under-holders", condition("False"), "tests/crash/test_migrate_while_running.py"),
    Guard("claim-pending-only", condition("False"), "tests/contract/test_registry.py"),
    Guard(
        "new-key-per-attempt",
        replace(r"auth_token=job\.auth_token if .*? else token", "auth_token=job.auth_token or token"),
        "tests/contract/test_registry.py",
    ),
    Guard("file-lock", drop, "tests/unit/test_fsio.py tests/contract/test_registry.py"),
    Guard("fsync-replaced-file", condition("False"), "tests/crash/test_every_write.py -k file"),
    Guard("private-file-mode", condition("False"), "tests/unit/test_fsio.py tests/contract/test_directory.py"),
    Guard("regular-file", condition("False"), f"{_HOSTILE} -k refused_by_name"),
    Guard("own-file", condition("False"), f"{_HOSTILE} -k foreign"),
    Guard("no-links", condition("False"), f"{_HOSTILE} -k link"),
    Guard("gateway-token", condition("False"), "tests/unit/test_gateway.py -k refused"),
    Guard("gateway-header", condition("False"), "tests/unit/test_gateway.py -k http"),
    Guard("gateway-body", condition("False"), "tests/unit/test_gateway.py -k refused"),
    Guard("gateway-time", condition("True"), "tests/unit/test_gateway.py -k slow"),
    Guard("gateway-connections", condition("False"), "tests/unit/test_gateway.py -k limited"),
    Guard("http-client-header", condition("False"), "tests/unit/test_http_client.py -k header"),
    Guard("http-client-body", condition("False"), "tests/unit/test_http_client.py -k long_body"),
    Guard("http-client-time", condition("False"), "tests/unit/test_http_client.py -k slow"),
    Guard("http-client-owner", drop, "tests/security/test_stranger_at_the_port.py -k agents_server"),
    Guard("http-client-event", condition("False"), "tests/unit/test_http_client.py -k long_event"),
    Guard(
        "gemini-same-minute",
        replace("if is_new else", "if False else"),
        "tests/unit/test_agents.py -k minute_of_a_conversation",
    ),
    Guard("opencode-folder", condition("True"), "tests/unit/test_opencode_channel.py -k cloned_folder"),
    Guard("opencode-plugin", condition("plugin := None"), "tests/unit/test_opencode_channel.py -k with_plugins"),
    Guard("qwen-folder", condition("False"), "tests/unit/test_qwen_folder.py"),
    Guard("users-permissions", condition("True"), "tests/unit/test_opencode_channel.py -k not_replaced"),
    Guard("transcript-folder", condition("False"), "tests/unit/test_claude_hooks.py -k elsewhere"),
    Guard("claude-registry-link", drop, "tests/unit/test_claude_registry.py -k small_file"),
    Guard("claude-registry-kind", condition("False"), "tests/unit/test_claude_registry.py -k small_file"),
    Guard("claude-registry-owner", condition("False"), "tests/unit/test_claude_registry.py -k another_user"),
    Guard("claude-registry-size", condition("False"), "tests/unit/test_claude_registry.py -k small_file"),
    Guard("claude-registry-pid", condition("False"), "tests/unit/test_claude_registry.py -k another_process"),
    Guard("claude-registry-start", condition("False"), "tests/unit/test_claude_registry.py -k another_process"),
    Guard("claude-registry-domain", condition("False"), "tests/unit/test_claude_registry.py -k another_process"),
    Guard("message-answers-no-dialog", condition("False"), "tests/system/test_attention.py -k no_message"),
    Guard("conversation-of-session", condition("False"), "tests/unit/test_claude_hooks.py -k another_conversation"),
    Guard("copilot-conversation", condition("False"), "tests/unit/test_copilot_channel.py -k another_conversation"),
    Guard("conversation-of-tool", replace("and not self._tools", ""), "tests/unit/test_terminal_hooks.py -k in_a_tool"),
    Guard("conversation-of-hook", condition("False"), "tests/unit/test_terminal_hooks.py -k another_conversation"),
    Guard("telemetry-of-session", condition("False"), "tests/unit/test_claude_hooks.py -k another_conversation"),
    Guard("database-schema", condition("False"), f"{_HOSTILE} -k trigger_runs"),
    Guard("database-time-limit", replace(r"time\.monotonic\(\)", "0.0"), f"{_HOSTILE} -k time_limit"),
    Guard("database-journal", condition("False"), f"{_HOSTILE} -k journal"),
    Guard("session-row", replace(r"check\((.*)\)", r"\1"), f"{_HOSTILE} -k another_form"),
    Guard("tmux-socket", condition("False"), f"{_HOSTILE} -k tmux_socket"),
    Guard("conversation-id", condition("False"), f"{_HOSTILE} -k is_an_option"),
    Guard("sqlite-synchronous", replace("FULL", "OFF"), "tests/crash/test_every_write.py -k sqlite"),
    Guard("claim-row-lock", replace(r"= .*", '= ""'), "tests/crash/test_backlog.py -k postgresql"),
    Guard("history-hash-chain", condition("False"), "tests/system/test_audit_log.py"),
    Guard("missing-artifact", condition("False"), "tests/integration/test_publisher.py"),
    Guard(
        "artifact-outside-workdir",
        condition("False"),
        "tests/integration/test_publisher.py tests/system/test_publish_and_subscribe.py",
    ),
    Guard(
        "redact-detail",
        replace(r"redactor\.text\((\w+),[^)]*\)", r"\1"),
        "tests/integration/test_publisher.py tests/integration/test_python_interface.py",
    ),
    Guard("redact-validation", replace(r"redactor\.text\((\w+)\)", r"\1"), "tests/integration/test_publisher.py"),
    Guard("prune-output-link", condition("True"), "tests/system/test_prune.py"),
    Guard("keys-in-results", replace(r"text\.replace\(.*\)", "text"), "tests/system/test_results.py"),
    Guard(
        "keys-in-output",
        replace(r"content\.replace\(key, HIDDEN\.encode\(\)\)", "content"),
        "tests/system/test_results.py",
    ),
    Guard("agent-name-owner", condition("False"), "tests/contract/test_directory.py"),
    Guard("agent-name-lock", drop, "tests/security/test_name_race.py tests/contract/test_directory.py"),
    Guard("removal-generation", condition("False"), "tests/contract/test_directory.py"),
    Guard(
        "exact-tmux-target",
        replace(r'f"=\{(\w+)\}"', r"\1"),
        "tests/integration/test_tmux.py tests/system/test_sessions.py",
    ),
    Guard(
        "tmux-format-characters",
        replace(r"(\w+)\.replace\([^)]*\)", r"\1"),
        "tests/integration/test_tmux.py tests/system/test_sessions.py",
    ),
    Guard(
        "process-start-time",
        replace(r"return .*", "return started_at(self.pid) is not None"),
        "tests/unit/test_processes.py",
    ),
    Guard("empty-artifact", condition("False"), "tests/integration/test_publisher.py"),
    Guard("unchanged-artifact", condition("False"), "tests/system/test_submit.py -k was_there_before"),
    Guard("validation-exit-code", condition("True"), "tests/integration/test_publisher.py"),
    Guard("follow-ended-only", condition("False"), "tests/system/test_follow_up.py -k cannot_be_followed"),
    Guard("open-conversation", condition("False"), "tests/system/test_follow_up.py -k open_once"),
    Guard("retry-ended-only", condition("False"), "tests/system/test_submit.py -k only_with_force"),
    Guard("machine-id", replace(r"return .*", "return host"), "tests/system/test_renamed_host.py"),
    Guard("inside-session", condition("False"), "tests/system/test_verification.py -k cannot_skip"),
    Guard(
        "validation-environment",
        replace(r"origin_of\(job\)", "None"),
        "tests/system/test_verification.py -k another_program",
    ),
    Guard("hidden-environment", condition("False"), "tests/system/test_verification.py -k cannot_hide"),
    Guard("ended-ancestor", replace(r"missing, pid = .*", "return"), "tests/unit/test_caller.py"),
    Guard("refused-claim", replace(r"= .*", "= False"), "tests/system/test_submit.py -k may_not_claim"),
    Guard(
        "whole-command-shown",
        replace(r"prompt=one_line\((.*), _PROMPT_CHARS\)", r"prompt=\1[:_PROMPT_CHARS]"),
        "tests/unit/test_inspection.py -k spaces",
    ),
    Guard("absolute-user-folder", condition("not base"), "tests/unit/test_config.py -k working_folder"),
    Guard("forged-submodule", condition("False"), "tests/unit/test_homes.py -k forged"),
    Guard("yolo-in-a-record", condition("False"), "tests/system/test_verification.py -k nor_by_the_record"),
    Guard("rule-inexact", condition("False"), "tests/unit/test_rules.py -k not_exact"),
    Guard("rule-wider-call", condition("False"), "tests/unit/test_rules.py -k wider"),
    Guard(
        "rule-exact-words",
        replace(r"return .*", "return words[: len(rule)] == tuple(rule)"),
        "tests/unit/test_rules.py",
    ),
    Guard("rule-plain-words", condition("False"), "tests/unit/test_rules.py -k star"),
    Guard("rule-characters", condition("False"), "tests/unit/test_rules.py"),
    Guard("rule-assignment", condition("not words"), "tests/unit/test_rules.py -k assignment"),
    Guard("request-exact", condition("True"), "tests/unit/test_request_service.py -k too_long"),
    Guard(
        "for-job-scope",
        replace(r"return .*", "return is_equal and same_attempt"),
        "tests/unit/test_request_service.py -k covers",
    ),
    Guard("inexact-answer", condition("False"), "tests/unit/test_request_service.py -k exact"),
    Guard("answerer-unknown", condition("False"), "tests/system/test_request_commands.py -k names_it"),
    Guard("answer-for-itself", condition("False"), "tests/system/test_request_commands.py -k names_it"),
    Guard("label-by-an-agent", replace(r"= .*", "= own.labels"), f"{_CALLERS} -k a_label_that"),
    Guard("hidden-agent", condition("False"), f"{_CALLERS} -k 'namespaces and same_user'"),
    Guard("background-of-tmux", condition("False"), f"{_CALLERS} -k own_tmux"),
    Guard("orphan-of-tmux", replace(r"return .*", "return False"), f"{_CALLERS} -k 'own_tmux and orphan'"),
    Guard("hidden-change", condition("False"), f"{_CALLERS} -k namespaces_of_its_own"),
    Guard("agents-environment", condition("True"), f"{_CALLERS} -k 'environment_of_its_runner and submit'"),
    Guard("state-of-an-agent", condition("False"), f"{_CALLERS} -k state_of_its_own"),
    Guard("unknown-starter", condition("False"), f"{_CALLERS} -k not_known"),
    Guard("parent-by-the-runner", replace(r"return .*", "return {}"), f"{_CALLERS} -k 'cannot_hide and unset'"),
    Guard("depth-of-jobs", condition("False"), f"{_CALLERS} -k to_a_depth"),
    Guard("jobs-below-a-root", condition("False"), f"{_CALLERS} -k so_many"),
    Guard("budget-at-home", condition("False"), f"{_CALLERS} -k below_a_budget"),
    Guard("session-without-budget", condition("False"), f"{_CALLERS} -k below_a_budget"),
    Guard("budget-of-a-job-above", condition("False"), f"{_CALLERS} -k below_a_budget"),
    Guard("answerer-not-named", condition("False"), "tests/system/test_request_commands.py -k names_it"),
    Guard("rules-of-others", condition("False"), "tests/system/test_rule_commands.py -k other_users"),
    Guard("settings-of-others", condition("False"), f"{_OF_OTHERS} -k run_nothing"),
    Guard("files-of-others", condition("False"), "tests/unit/test_own_files.py -k namespace"),
    Guard("what-is-in-a-home", condition("False"), f"{_OF_OTHERS} -k can_enter"),
    Guard("registry-of-others", condition("False"), f"{_OF_OTHERS} -k elsewhere"),
    Guard("worktrees-of-others", condition("False"), f"{_OF_OTHERS} -k worktrees"),
    Guard("folders-of-others", condition("False"), "tests/unit/test_own_files.py -k way"),
    Guard("links-of-others", condition("False"), "tests/unit/test_own_files.py -k another_user"),
    Guard("state-of-others", condition("False"), f"{_OF_OTHERS} -k state"),
    Guard("home-of-others", condition("False"), f"{_OF_OTHERS} -k state"),
    Guard("rule-outside", condition("False"), "tests/unit/test_rules.py -k outside"),
    Guard("rule-reserved", condition("False"), "tests/unit/test_rules.py -k reserved"),
    Guard("rule-out-of-bounds", replace(r"return .*", "return True"), "tests/unit/test_rules.py -k out_of_bounds"),
    Guard(
        "rule-runs-others",
        replace(r" and not runs_others\(fixed\)", ""),
        "tests/unit/test_rules.py -k 'other_programs or every_program'",
    ),
    Guard("rule-head-of-repository", replace(r"return .*", 'return ""'), "tests/unit/test_rules.py -k out_of_bounds"),
    Guard("rule-below-folder", condition("False"), "tests/unit/test_rules.py -k part_that_a_rule_denies"),
    Guard("rule-within-parent", condition("False"), "tests/unit/test_rules.py -k every_job_above"),
    Guard("rule-denied-above", drop, "tests/unit/test_rules.py -k every_job_above"),
    Guard("rule-path-spaces", condition("False"), "tests/unit/test_rules.py -k two_ways"),
    Guard("rule-path-scheme", condition("False"), "tests/unit/test_rules.py -k two_ways"),
    Guard("rule-parent-of-link", condition("False"), "tests/unit/test_rules.py -k parent_of_a_link"),
    Guard("rule-beside-command", replace(r"= .*", "= self.odd"), "tests/unit/test_rules.py -k do_not_know"),
    Guard("rule-folder-of-command", replace(r"return .*", "return True"), "tests/unit/test_rules.py -k do_not_know"),
    Guard("rule-unknown-argument", drop, f"{_ARGUMENTS} -k do_not_know"),
    Guard("rule-nested-argument", condition("False"), f"{_ARGUMENTS} -k do_not_know"),
    Guard("rule-granted-root", drop, f"{_ARGUMENTS} -k do_not_know"),
    Guard("rule-patch", condition("False"), f"{_ARGUMENTS} -k do_not_know"),
    Guard("rule-scheme-of-url", condition("False"), f"{_ARGUMENTS} -k do_not_know"),
    Guard("rule-pattern", condition("False"), f"{_ARGUMENTS} -k do_not_know"),
    Guard(
        "rule-in-repository",
        replace(r"\*sorted\(repositories\)", "*()"),
        "tests/unit/test_request_service.py -k repository_without",
    ),
    Guard("rule-settings", replace(r"= .*", "= list[str]()"), "tests/unit/test_request_service.py -k settings"),
    Guard("copied-when-adopted", replace(r"= .*", "= True"), "tests/unit/test_adoption.py -k is_open"),
    Guard("adopt-orphans", condition("False"), "tests/system/test_escaped_processes.py -k cancel"),
    Guard("event-after-end", condition("False"), "tests/unit/test_watch.py"),
    Guard(
        "plaintext-broker",
        condition("False"),
        "tests/integration/test_brokers.py tests/integration/test_publisher.py tests/unit/test_config.py",
    ),
    Guard("login-for-folder-broker", condition("named"), "tests/integration/test_brokers.py -k login_of_the_user"),
    Guard("login-for-record-broker", condition("not named"), "tests/integration/test_brokers.py -k login_of_the_user"),
    Guard(
        "job-id-in-path",
        condition("isinstance(value, str)"),
        "tests/unit/test_model.py tests/system/test_job_commands.py",
    ),
    Guard("agent-name-in-path", condition("False"), "tests/unit/test_agent_names.py"),
    Guard("session-host", condition("False"), "tests/integration/test_agent_control.py"),
    Guard("manifest-identity", condition("False"), "tests/integration/test_agent_control.py"),
    Guard("network-file-system", condition("False"), "tests/system/test_network_file_system.py"),
    Guard("paste-end-sequence", condition("False"), "tests/integration/test_tmux.py"),
    Guard(
        "pane-identity",
        condition("True"),
        "tests/integration/test_stubborn_sessions.py tests/system/test_sessions.py tests/integration/test_monitor_and_sessions.py",
    ),
    Guard(
        "second-look", condition("True"), "tests/unit/test_monitor.py tests/integration/test_monitor_and_sessions.py"
    ),
    Guard("lost-elsewhere", condition("False"), "tests/unit/test_session_record.py -k lost"),
    Guard("lost-of-another-user", condition("False"), "tests/system/test_lost_sessions.py -k another_user"),
    Guard(
        "clean-terminal",
        replace(r"printable_lines\((\w+)\)", r"\1"),
        "tests/system/test_terminal_output.py -k traceback",
    ),
    Guard(
        "broker-owner", condition("False"), "tests/security/test_stranger_at_the_port.py -k sends_a_stranger_nothing"
    ),
    Guard(
        "columns-win",
        replace(r"\{\*\*parse_json\(others\), \*\*record\}", "record | parse_json(others)"),
        "tests/system/test_grants.py -k another_worker_runs",
    ),
    Guard("own-server", condition("False"), "tests/security/test_server_of_a_folder.py"),
    Guard("own-topic", condition("False"), "tests/unit/test_model.py"),
    Guard("history-cut", condition("False"), "tests/system/test_audit_log.py"),
    Guard("state-of-another-user", condition("False"), "tests/unit/test_homes.py"),
    Guard("entry-of-another-user", condition("False"), "tests/unit/test_homes.py"),
    Guard("home-of-another-user", condition("False"), "tests/unit/test_homes.py"),
    Guard("small-file-kind", condition("False"), "tests/unit/test_homes.py"),
    Guard("replaced-home", replace(r"home if .*? else None", "home"), "tests/unit/test_homes.py"),
    Guard("process-of-this-home", condition("wanted in variables"), "tests/unit/test_processes.py"),
    Guard("runner-of-this-home", condition("runner is None"), "tests/unit/test_inventory.py"),
    Guard("copy-of-a-folder", condition("False"), "tests/unit/test_adoption.py"),
    Guard("adopt-what-was-shown", condition("False"), "tests/unit/test_adoption.py"),
    Guard("home-in-use", drop, "tests/unit/test_adoption.py"),
    Guard("home-of-a-process", condition("False"), "tests/unit/test_adoption.py"),
    Guard("moved-out-of-the-home", condition("False"), f"{_HOSTILE} -k note_of_a_migration"),
    Guard("trust-in-the-state", condition("False"), "tests/unit/test_adoption.py"),
    Guard("trust-of-another-user", condition("False"), "tests/system/test_trust.py -k another_user"),
    Guard("forged-git-file", condition("False"), "tests/unit/test_homes.py"),
    Guard("link-of-another-folder", insert_before("return None"), "tests/unit/test_homes.py"),
    Guard("one-home-per-folder", replace(r"os\.link", "os.replace"), "tests/unit/test_homes.py"),
    Guard("settings-file-kind", condition("False"), "tests/unit/test_config.py"),
    Guard("tables-of-the-user", condition("name not in _TABLES"), "tests/system/test_notifications.py -k own_settings"),
    Guard("webhook-without-tls", condition("False"), "tests/system/test_notifications.py -k not_valid"),
    Guard("one-sender", condition("False"), "tests/contract/test_registry.py -k TestNotifications"),
    Guard(
        "notification-on-terminal",
        replace(r"one_line\(word, _TEXT\)\.replace\(.*?\)", "word"),
        "tests/system/test_notifications.py -k terminal",
    ),
    Guard("settings-file-size", condition("False"), "tests/unit/test_config.py"),
    Guard("answer-what-was-shown", condition("shown is None"), "tests/unit/test_view.py -k key"),
    Guard("git-hooks", replace(r'"core.hooksPath": "/dev/null",', ""), f"{_REPOSITORY} -k no_program"),
    Guard("git-fsmonitor", replace(r'"core.fsmonitor": "false",', ""), f"{_REPOSITORY} -k no_program"),
    Guard("git-filters", condition("False"), f"{_REPOSITORY} -k no_program"),
    Guard("git-hook-settings", condition("False"), f"{_REPOSITORY} -k hooks_of_the_configuration"),
    Guard("git-checkout-in-worktree", replace('"--no-checkout", ', ""), f"{_REPOSITORY} -k no_program"),
    Guard("git-merge-drivers", condition("False"), f"{_REPOSITORY} -k no_driver"),
    Guard("git-diff-programs", replace('"--no-ext-diff", "--no-textconv", ', ""), f"{_REPOSITORY} -k no_program"),
    Guard("base-is-no-option", condition("False"), f"{_REPOSITORY} -k never_an_option"),
    Guard("foreign-work-tree", condition("False"), f"{_REPOSITORY} -k elsewhere"),
    Guard("half-removed-worktree", condition("not os.path.isdir(tree.path)"), f"{_WORKTREES} -k half_removed"),
    Guard("index-time", drop, f"{_KEPT} -k same_second"),
    Guard("touched-files", condition("False"), f"{_KEPT} -k keeps_size_and_time_is_seen"),
    Guard("written-meanwhile", condition("False"), f"{_KEPT} -k is_written_while"),
    Guard("changed-meanwhile", condition("True"), f"{_KEPT} -k after_the_listing"),
    Guard("moved-by-validation", condition("found is not None"), f"{_COMMANDS} -k moved"),
    Guard("background-products", condition("path is None or not job.validate"), f"{_COMMANDS} -k background"),
    Guard("not-held", condition("False"), f"{_KEPT} -k another_reason"),
    Guard("merge-dirty", condition("False"), f"{_WORKTREES} -k nothing_of_the_user"),
    Guard("merge-filtered", condition("False"), f"{_WORKTREES} -k lfs"),
    Guard("merge-conflict", condition("False"), f"{_WORKTREES} -k conflict"),
    Guard("merge-untracked", condition("False"), f"{_WORKTREES} -k nothing_of_the_user"),
    Guard("merge-check", condition("False"), f"{_WORKTREES} -k failing_check"),
    Guard("branch-of-another", condition("False"), f"{_WORKTREES} -k branch_of_that_name"),
    Guard("remove-work", condition("False"), f"{_WORKTREES} -k work_is_not_removed"),
    Guard("detached-commits", drop, f"{_WORKTREES} -k left_the_branch"),
    Guard("unmerged-branch", condition("False"), f"{_WORKTREES} -k commits_stay"),
    Guard("worktree-record", condition("_NAME.fullmatch(tree.name) is None"), f"{_WORKTREES} -k record"),
    Guard("worktrees-outside", condition("False"), f"{_WORKTREES} -k inside_of_the_repository"),
    Guard("replaced-worktree", condition("False"), f"{_WORKTREES} -k in_place_of"),
    Guard("repository-settings", condition("False"), f"{_COMMANDS} -k settings_of"),
    Guard("board-whole-call", condition("False"), "tests/unit/test_board_screen.py -k scrolled_to_its_end"),
    Guard(
        "board-default-no",
        replace(r"not request.consent.default_no", "True"),
        "tests/unit/test_board_screen.py -k one_key",
    ),
    Guard("key-default-no", condition("False"), "tests/unit/test_view.py -k would_not"),
    Guard("confirm-default-no", condition("False"), "tests/system/test_request_commands.py -k once_more"),
    Guard(
        "approve-by-job-asks",
        condition("not ask(question) and False"),
        "tests/system/test_request_commands.py -k on_a_terminal",
    ),
    Guard(
        "goes-on-without-evidence",
        condition("request.applied == 'no'"),
        "tests/system/test_request_commands.py -k evidence",
    ),
    Guard("allow-by-job", condition("False"), "tests/unit/test_request_service.py -k id_of_a_job"),
    Guard("for-job-offered", condition("False"), "tests/unit/test_request_service.py -k not_offered"),
    Guard("person-only-rule", condition("False"), "tests/unit/test_request_service.py -k person"),
    Guard("person-only-answered-by-agent", condition("False"), "tests/unit/test_request_service.py -k person"),
    Guard("plan-that-was-shown", condition("False"), f"{_CLAUDE_HOOKS} -k asked_again"),
    Guard("plan-that-was-shown-headless", condition("False"), "tests/unit/test_claude_stream.py -k plan"),
    Guard("plan-changes", condition("False"), f"{_CLAUDE_HOOKS} -k all_the_time"),
    Guard("plan-folder", condition("False"), f"{_CLAUDE_HOOKS} -k elsewhere"),
    Guard("plan-regular-file", condition("False"), f"{_CLAUDE_HOOKS} -k not_certainly"),
    Guard("plan-owner", condition("False"), f"{_CLAUDE_HOOKS} -k not_certainly"),
    Guard("plan-too-long", condition("False"), f"{_CLAUDE_HOOKS} -k not_certainly"),
    Guard("plan-transcript", condition("False"), f"{_CLAUDE_HOOKS} -k transcript_elsewhere_names"),
    Guard("board-list-moved", condition("False"), "tests/unit/test_board_screen.py -k list_moved"),
    Guard("board-just-shown", condition("False"), "tests/unit/test_board_screen.py -k only_just"),
    Guard("bulk-shown-first", condition("False"), "tests/unit/test_board_screen.py -k marked"),
    Guard("web-socket-only", condition("False"), f"{_WEB} -k left_behind"),
    Guard("web-host", condition("False"), f"{_WEB} -k rebound"),
    Guard("web-origin-missing", condition("False"), f"{_WEB} -k needs_an_origin"),
    Guard("web-origin", condition("False"), f"{_WEB} -k another_origin"),
    Guard("web-header-twice", replace(r"value if before is None .*\"", "value"), f"{_WEB} -k sent_twice"),
    Guard("web-fetch-site", condition("False"), f"{_WEB} -k needs_an_origin"),
    Guard("web-login", condition("False"), f"{_WEB} -k without_a_login"),
    Guard("web-login-place", condition("False"), f"{_WEB} -k own_place"),
    Guard("web-rights", condition("False"), f"{_WEB} -k rights_are_held"),
    Guard("web-custom-header", condition("False"), f"{_WEB} -k needs_an_origin"),
    Guard("web-json-only", condition("False"), f"{_WEB} -k needs_an_origin"),
    Guard("web-body-size", condition("False"), f"{_WEB} -k oversized"),
    Guard("web-token-once", drop, f"{_WEB} -k used_once"),
    Guard("web-login-of-port", replace(r"port == self._port and ", ""), f"{_WEB} -k another_port"),
    Guard("web-listen", condition("False"), f"{_WEB} -k beyond_loopback"),
    Guard("web-inside-session", drop, f"{_WEB} -k beyond_loopback"),
    Guard("web-connections", condition("False"), f"{_WEB} -k slow_and_idle"),
    Guard("web-slow-request", replace(r"end < now", "end < 0"), f"{_WEB} -k slow_and_idle"),
    Guard("web-viewers", condition("False"), f"{_WEB} -k viewers"),
    Guard("mcp-line-length", condition("False"), f"{_MCP} -k long_line"),
    Guard("mcp-calls-at-once", condition("False"), f"{_MCP} -k many_calls"),
    Guard("opencode-answers-itself", condition("True"), "tests/unit/test_opencode_channel.py -k program_of_the_agent"),
    Guard("mcp-shell", condition("False"), f"{_MCP_LIMITS} -k until_the_user_allows_it"),
    Guard("mcp-validate", condition("False"), f"{_MCP_LIMITS} -k validation"),
    Guard("mcp-workdir", condition("False"), f"{_MCP_LIMITS} -k however_it_is_named"),
    Guard("mcp-repository", condition("False"), f"{_MCP_LIMITS} -k repository_elsewhere"),
    Guard("mcp-yolo", condition("False"), f"{_MCP_LIMITS} -k asks_for_nothing"),
    Guard("mcp-yolo-agent", condition("False"), f"{_MCP_LIMITS} -k live_agent"),
    Guard("bound-to-a-folder", condition("False"), f"{_MCP_LIMITS} -k becomes_a_link"),
    Guard("mcp-typing", condition("True"), f"{_TYPING} -k client_types"),
    Guard("typing-is-answering", drop, f"{_TYPING} -k web_board"),
    Guard("mcp-unknown-argument", condition("False"), f"{_MCP} -k skips_no_permission"),
    Guard("board-answers-what-was-shown", condition("False"), "tests/unit/test_board_query.py -k what_was_shown"),
)


def mark_of(name: str, marks: list[Mark]) -> Mark:
    """Return the only mark of that name."""
    found = [mark for mark in marks if mark.name == name]
    if len(found) != 1:
        raise RuntimeError(f"`# guard: {name}` stands {len(found)} times in src/baton, not once")
    return found[0]


class Copy:
    """The sources without one guard, and an interpreter that uses them."""

    def __init__(self, folder: str) -> None:
        self._source = os.path.join(ROOT, "src", "baton")
        self._package = os.path.join(folder, "src", "baton")
        shutil.copytree(self._source, self._package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(os.path.join(ROOT, "tests"), os.path.join(folder, "tests"))
        shutil.copytree(os.path.join(ROOT, "docs"), os.path.join(folder, "docs"))
        for name in ("pyproject.toml", "README.md", "skills"):
            path = os.path.join(ROOT, name)
            if os.path.isdir(path):
                shutil.copytree(path, os.path.join(folder, name))
            elif os.path.exists(path):
                shutil.copy(path, folder)
        self.folder = folder
        home = os.path.join(folder, "venv")
        venv.create(home, with_pip=False, symlinks=True)
        self.python = os.path.join(home, "bin", "python")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = os.path.join(home, "lib", version, "site-packages")
        with open(os.path.join(site, "baton.pth"), "w", encoding="utf-8") as file:
            # A .pth inside an added folder is not followed, so the installed baton stays out of it.
            file.write(f"{os.path.join(folder, 'src')}\n{sysconfig.get_path('purelib')}\n")
        script = os.path.join(home, "bin", "baton")
        with open(script, "w", encoding="utf-8") as file:
            file.write(f"#!{self.python}\nimport sys\nfrom baton.__main__ import run\nsys.exit(run())\n")
        os.chmod(script, 0o755)
        for name in os.listdir(sysconfig.get_path("scripts")):
            place = os.path.join(home, "bin", name)
            if not os.path.exists(place):
                os.symlink(os.path.join(sysconfig.get_path("scripts"), name), place)

    def remove(self, guard: Guard) -> str:
        """Remove a guard from the copy, and return the path of the changed file."""
        mark = mark_of(guard.name, find_marks(self._package))
        with open(mark.path, encoding="utf-8") as file:
            text = file.read()
        try:
            changed = without_guard(text, mark.line, guard.rule)
        except ValueError as error:
            raise RuntimeError(f"{guard.name} in {mark.path}: {error}; fix its rule in {__file__}") from None
        with open(mark.path, "w", encoding="utf-8") as file:
            file.write(changed)
        return mark.path

    def restore(self, path: str) -> None:
        shutil.copy(os.path.join(self._source, os.path.relpath(path, self._package)), path)

    def tests_pass(self, tests: str) -> bool:
        import shlex

        process = subprocess.Popen(
            [self.python, "-m", "pytest", "-x", "--timeout", "120", *shlex.split(tests)],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=TIMEOUT_SEC)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return False  # a lock that is gone may well hang a test
        if process.returncode not in (0, 1):
            raise RuntimeError(f"pytest could not run {tests}:\n{output[-3000:]}")
        return process.returncode == 0


def noticed(copy: Copy, guard: Guard) -> bool:
    path = copy.remove(guard)
    try:
        return not copy.tests_pass(guard.tests)
    finally:
        copy.restore(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("word", nargs="?", default="", help="only guards whose name holds this")
    parser.add_argument("--list", action="store_true", help="name the guards")
    options = parser.parse_args()
    chosen = [guard for guard in GUARDS if options.word in guard.name]
    if options.list:
        print(*(guard.name for guard in chosen), sep="\n")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="baton-guards-") as folder:
        free: queue.Queue[Copy] = queue.Queue()
        for number in range(AT_ONCE):
            free.put(Copy(os.path.join(folder, str(number))))

        def with_a_copy(what: Callable[..., bool], *arguments: object) -> bool:
            copy = free.get()
            try:
                return what(copy, *arguments)
            finally:
                free.put(copy)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            # A test that fails anyway would notice everything.
            sets = sorted({guard.tests for guard in chosen})
            passing = pool.map(lambda tests: with_a_copy(Copy.tests_pass, tests), sets)
            failing = [tests for tests, passes in zip(sets, passing, strict=True) if not passes]
            if failing:
                print("G1: these fail with every guard in its place:", *failing, sep="\n  ")
                return 1
            print(f"{len(sets)} sets of tests pass with every guard in its place", flush=True)
            unnoticed = []
            for guard, seen in zip(chosen, pool.map(lambda guard: with_a_copy(noticed, guard), chosen), strict=True):
                print(f"{'noticed  ' if seen else 'UNNOTICED'}  {guard.name}", flush=True)
                unnoticed += [] if seen else [guard.name]
    held = "held" if not unnoticed else "broken"
    took = time.monotonic() - began
    print(f"G1: {len(chosen)} guards removed one at a time, {len(unnoticed)} unnoticed, in {took:.0f} s ({held})")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
