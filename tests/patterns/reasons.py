"""Why each regular expression of the code takes time in proportion to the text, whatever that is. A new one needs an entry.

Text of clients, agents and repositories reaches most of them, and the interpreter's lock is held while one is matched.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIXED = "It repeats nothing without a limit: it looks at as many characters of the text as the pattern is long."
OF_AUTHOR = "The pattern is that of the scenario's author."
ONE_CLASS = "What its repeats have looked at is a match in any case, and the search goes on behind it."
ONE_WAY = "It is tried at one place, and there is one way to match: no repeat takes what follows it, or there is one repeat only."
LAST = "It is tried at one place, and only its last repeat, which nothing follows, takes anything."
ONE_START = "It is searched, but a search begins once in the characters that its repeats take."
TO_THE_END = "What begins like a match is one, to the end of the text if it is not closed: no search begins inside it."
BOUNDED_NAMES = "Its repeats in front have an upper bound, and the others end before the place where another search can begin."
PYDANTIC = "It is matched by pydantic's own engine, which takes linear time for each pattern."

REASONS: Mapping[str, Mapping[str, str]] = {
    "gateway/agents/client_mcp_servers.py": {
        r"-[\w.-]+": ONE_CLASS,
    },
    "gateway/agents/ignore_rules.py": {
        r"[*?\[\\]": FIXED,
        r"\\(.)": FIXED,
    },
    "gateway/agents/installed_version.py": {
        r"\d+\.\d+\.\d+(?:-[\w.]+)?": ONE_WAY,
    },
    "gateway/cli/jsonc.py": {
        r'"(?:\\.|[^"\\])*"?|//[^\n]*|/\*.*?(?:\*/|\Z)': TO_THE_END,
        r'"(?:\\.|[^"\\])*"?|,(?=\s*[}\]])': TO_THE_END,
        r"\s*": ONE_CLASS,
        r"[^\n]": FIXED,
    },
    "gateway/cli/launchd.py": {
        r"^\t(state|pid|last exit code) = (.+)$": ONE_START,
    },
    "gateway/cli/systemd.py": {
        "^ExecStart=(.*)$": ONE_START,
        r"^TimeoutStopSec=(\d+)$": ONE_START,
        r"listening on (\S+)": ONE_START,
        r'"((?:[^"\\]|\\.)*)"?': TO_THE_END,
        "^Environment=(.*)$": ONE_START,
        r"\\(.)": FIXED,
    },
    "gateway/terminal_text.py": {
        "f'[{_CONTROL}]'": FIXED,
        r"f'(?!\\r?\\n|\\t)[{_CONTROL}]'": FIXED,
    },
    "gateway/config.py": {
        r"f'\\*|(\\*\\.)?{_NAME}|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+'": ONE_WAY,
        r"f'https?://({_NAME}|\\[[0-9A-Fa-f:.]+\\])(:(\\d+|\\*))?|(?!https?:|file:)[A-Za-z][A-Za-z0-9+.-]*://(\\*|{_NAME}(:(\\d+|\\*))?)'": ONE_WAY,  # noqa: E501
        r"f'https?://({_NAME}|\\[[0-9A-Fa-f:.]+\\]):\\d{{1,5}}'": ONE_WAY,
        "^(debug|info|warning|error)$": PYDANTIC,
        r"[1-9]\d*[bkmg]?": ONE_WAY,
        "AGENT_NAME": PYDANTIC,
    },
    "gateway/console/static_files.py": {
        "[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*": ONE_WAY,
    },
    "gateway/diagnosis/agents.py": {
        r"log.?in|logged|auth|api.?key|credential|\b40[13]\b": FIXED,
    },
    "gateway/events/log_pages.py": {
        r"b'|'.join((b'(?:%b[^\n]*+(?:\n|$))++' % re.escape(prefix) for prefix in _DELTAS)) + b'|[^\\n]*+(?:\\n|$)'": TO_THE_END,
    },
    "gateway/cluster/node_keys.py": {
        r"v1 ([A-Za-z0-9._-]{1,64}) (\d{1,12}) ([0-9a-f]{32}) ([0-9a-f]{64}) ([0-9a-f]{64})": FIXED,
    },
    "gateway/policy/rules.py": {
        r"[;&|<>`\n]|\$\(": FIXED,
        "[*?]": FIXED,
        "^//+": ONE_CLASS,
        r"[\s*?]": FIXED,
        r"[/\\]": FIXED,
    },
    "gateway/policy/shell_commands.py": {
        r"[^\S \t\n]|[\x00-\x08\x0e-\x1f\x7f]": FIXED,
        r"//|/\.\.?(?:/|\s|$)|(?:^|\s)\./": FIXED,
        r"[\s;&|(){}`$<>]": FIXED,
        r"[;&|\n(){}`]|\$\(": FIXED,
        "-[A-Za-z]*[si].*|--(?:shell|login)": LAST,
        "-.*|!|time|command|builtin|jobs|coproc": LAST,
        "-(?:exec|execdir|ok|okdir)|--?(?:exec|exec-batch|x|X)": FIXED,
        "-[iIJ](.*)|--replace(?:=(.*))?": LAST,
        r"-(?:[^\Ws]*s\w*)?": ONE_WAY,
        "-|/dev/(?:stdin|fd/.*)|/proc/.*": LAST,
        "-[A-Za-z0]*?S(.*)|--s[a-z-]*(?:=(.*))?": LAST,
        "(?<=sh)-?[0-9][0-9.]*$": ONE_START,
        r"[A-Za-z_]\w*=.*|[0-9.]+[a-z]*": LAST,
        r"^-\w": FIXED,
        "^//+": ONE_CLASS,
        "-|[0-9]+$": LAST,
    },
    "gateway/policy/shell_syntax.py": {
        r"(?:[ \t]|\\\n)+": ONE_CLASS,
        r"""[^\s\\'\"$`;&|<>()*?\[{]+""": ONE_CLASS,
        r"[A-Za-z_]\w*": ONE_CLASS,
        r"[A-Za-z_][\w.:@+-]*": ONE_CLASS,
        r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=": ONE_WAY,
        r"(?:BASH_ENV|BASH_ALIASES|BASH_CMDS|PROMPT_COMMAND|PS[0124])(?:$|[+=\[])|BASH_FUNC_": FIXED,
        r"\s[-+]\w*i": ONE_START,
        "[;&|]": FIXED,
        "[A-Za-z_]": FIXED,
        r"\([ \t]*\)": ONE_WAY,
        r"[{}!]|\[\[": FIXED,
        "-p|--": FIXED,
        r"[A-Za-z_]\w*|[0-9@*#?$!-]": ONE_CLASS,
        r"&>>?|[0-9]*(?:<<<|<<-|<<|<>|<&|>>|>&|>\||<|>)": ONE_WAY,
        r"[12]?>&[12]|(?:[12]?>>?|&>>?)[ \t]*/dev/null": ONE_WAY,
        r"&&|\|\||\|&|[;&|]": FIXED,
        ";;&|;;|;&": FIXED,
        r'[^"\\$`]+': ONE_CLASS,
        "'[^']*'": ONE_WAY,
        r"'(?:[^'\\]|\\.)*'": ONE_WAY,
        r"`((?:[^`\\]|\\.)*)`": ONE_WAY,
        r"\\(?:x([0-9a-fA-F]{1,2})|[uU]([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))": FIXED,
        r"""[^}\\'\"$`<>]+""": ONE_CLASS,
        r"""[^()\\'\"$`]+""": ONE_CLASS,
        r"`|\$[({\[]|\$$": FIXED,
        r"\w+": ONE_CLASS,
        r"\[|:(?![-=?+])": FIXED,
    },
    "gateway/protocols/acp/tool_calls.py": {
        r"Task #(\w+) created": ONE_WAY,
        "complete|done": FIXED,
        "progress": FIXED,
        "`+": ONE_CLASS,
    },
    "gateway/protocols/model_apis/anthropic_messages_request.py": {
        r"x-anthropic-billing-header:[^\n]*\n*": ONE_CLASS,
    },
    "gateway/protocols/model_apis/responses.py": {
        "^messages: ": FIXED,
    },
    "gateway/protocols/model_apis/running_answer.py": {
        r"[^\x20-\x7e]": FIXED,
    },
    "gateway/protocols/model_apis/vendor_requests.py": {
        r"(?:/[^/]+){0,4}?/(?:(?P<openai>chat/completions|responses|models|embeddings|completions)"
        r"|(?P<anthropic>messages(?:/count_tokens)?))/?": (
            "It is tried at one place. Its repeat in front has an upper bound, and each slash begins the next part of it."
        ),
        r"([a-z_]+(?:\.\w+)*): ": ONE_WAY,
    },
    "gateway/protocols/operations/keys.py": {
        "AGENT_NAME": FIXED,
    },
    "gateway/protocols/route_metadata.py": {
        "[^a-z0-9]+": ONE_CLASS,
    },
    "gateway/security/named_keys.py": {
        "AGENT_NAME": FIXED,
    },
    "gateway/security/redaction.py": {
        '(?ix) (?P<a> \\bbearer\\s+ ) [^\\s"\',;\\\\]+\n    | \\b (?:sk|pk|rk)-[\\w-]{16,} | \\bAIza[\\w-]{30,}\n    | (?P<b> (?<![\\w-]) [\\w-]{0,64} (?:key|token|secret|password) = ) [^&\\s"\'\\\\]+\n    | (?P<c> (?<![\\w-]) [\\w-]{0,64} (?:api_?key|(?:access|auth|refresh)_?token|secret|password|authorization) \\\\?"\\s*:\\s*\\\\?" )\n      (?:[^"\\\\]|\\\\[^"])+\n    | (?P<d> ://[^/\\s:@"]*: ) [^/\\s@"]+ (?=@)': BOUNDED_NAMES,  # noqa: E501
        "[0-9]": FIXED,
        "[A-Za-z]": FIXED,
        r"\s": FIXED,
    },
    "gateway/server/guard.py": {
        "[A-Za-z0-9._:/+=-]{1,128}": FIXED,
    },
    "gateway/server/host_origin.py": {
        r"(\[[0-9a-f:.]+\]|[^\s:/@?#\[\]]+)(:\d*)?": ONE_WAY,
    },
    "gateway/sessions/call_files.py": {
        r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.*)$": ONE_CLASS,
    },
    "gateway/sessions/search.py": {
        r'"([^"]*)"|([^\s"]+)': ONE_START,
    },
    "gateway/store/schema.py": {
        "--.*": ONE_CLASS,
    },
    "gateway/store/sql.py": {
        r"\{(\w+)\}": ONE_START,
        r"\{in_(\w+)\}": ONE_START,
        r"(?<![\w:]):(\w+)": ONE_CLASS,
        "[%_/]": FIXED,
    },
    "gateway/store/urls.py": {
        "([^/?]*)([^?]*)(.*)": ONE_WAY,
        r"[#\s]|%(?![0-9A-Fa-f]{2})|%00": FIXED,
        r"(\[[^][]*\]|[^][:]*)(:[0-9]*)?": ONE_WAY,
        "[a-z0-9+]+": ONE_WAY,
    },
    "gateway/store/words.py": {
        "f'{_LETTER}+(?:[\u0300-\u036f]{_LETTER}*)*|(?=[^\\\\W_])[{_ALONE}]'": ONE_CLASS,
    },
    "gateway/worktrees/checkout.py": {
        "would be overwritten by merge|would lose untracked files in them": FIXED,
    },
    "gateway/worktrees/git.py": {
        r"Unable to create '([^'\n]{1,4096}\.lock)': File exists": FIXED,
        r"(?:LF would be replaced by CRLF|CRLF would be replaced by LF) in ([^\n]{1,4096})": FIXED,
        "bad object|bad tree object|unable to read|could not read|missing blob|missing tree|corrupt|invalid object": FIXED,
        r"(?<!\d)(\d+)\.(\d+)": ONE_START,
    },
    "gateway/worktrees/worktrees.py": {
        "[^A-Za-z0-9._-]+": ONE_CLASS,
    },
    "drivers/acp/call_scope.py": {
        "(?:(?:/usr)?/bin/)?(?:sh|bash|dash|zsh)": FIXED,
        r"[A-Za-z_]\w*": ONE_CLASS,
    },
    "drivers/claude/tool_results.py": {
        r"Exit code (\d{1,3})(?:\n|$)": FIXED,
    },
    "drivers/claude/tools.py": {
        "[^A-Za-z0-9_-]": FIXED,
    },
    "drivers/codecs/file_changes.py": {
        r"@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@": ONE_WAY,
    },
    "drivers/codecs/repeated_lines.py": {
        r'[^"\\\x00-\x1f]+': ONE_CLASS,
        r"b'[\\\\\\x00-\\x1f]'": FIXED,
        r"""b'[^"\\\\\\x00-\\x1f]*+(?:\\\\["\\\\/bfnrt][^"\\\\\\x00-\\x1f]*+)*+'""": ONE_WAY,
    },
    "drivers/codex/app_tools.py": {
        "[A-Za-z0-9_-]{1,64}": FIXED,
        "[^A-Za-z0-9_-]": FIXED,
    },
    "drivers/codex/items.py": {
        "(?<=[a-z0-9])([A-Z])": FIXED,
        r"^Process exited with code (-?\d+)$": ONE_START,
    },
    "drivers/compatibility.py": {
        r"\d+(?:\.\d+)*": ONE_CLASS,
    },
    "drivers/contract/line_splitter.py": {
        r"b'\\x1b[\\]PX^_][^\\x07\\x1b]*(?:\\x07|\\x1b\\\\)|\\x1b\\[[0-?]*[ -/]*[@-z|}~]|\\x1b[ -/]*[0-z|}~]?|[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1a\\x1c-\\x1f\\x7f]|\\xef\\xbb\\xbf'": ONE_START,  # noqa: E501
        r'\{\s*["}]': ONE_START,
        r"""[\s:=,>('\"`\[]\Z""": FIXED,
        r"""(?<![^\s\"',:;{}\[\]])[^\s\"',:;{}\[\]]*\Z""": ONE_START,
    },
    "drivers/contract/mcp_servers.py": {
        "_{2,}": ONE_CLASS,
        "[^A-Za-z0-9_-]": FIXED,
    },
    "drivers/contract/messages.py": {
        "data:([^;,]+);base64,(.*)": ONE_WAY,
    },
    "drivers/gemini/home.py": {
        r"session-\d{4}-\d\d-\d\dT\d\d-\d\d-(.+)\.jsonl": ONE_WAY,
        r'"([^"\n]*)"': ONE_START,
    },
    "drivers/gemini/tools.py": {
        "mcp_([A-Za-z0-9-]+)_(.+?)__": ONE_WAY,
        r"[^a-zA-Z0-9_\-.:]": FIXED,
        r"[\w.:-]{1,63}": FIXED,
        "[^a-z0-9]+": ONE_CLASS,
    },
    "drivers/runtime/cli_driver.py": {
        r"(?<!\d)\d+(?:\.\d+)+(?:[-+][0-9A-Za-z.-]+)?": ONE_START,
    },
    "drivers/script/program/play.py": {
        r"\{\{([\w.-]+)\}\}|(\{\{)|\{([\w.-]+)\}": ONE_START,
    },
    "drivers/script/schema.py": {
        r"^[^\n]*$": PYDANTIC,
        r"^[^/\n][^\n]*$": PYDANTIC,
    },
    "drivers/testing/check_info.py": {
        "[A-Za-z0-9][A-Za-z0-9_.-]*": ONE_CLASS,
    },
    "gateway/console/static/js/approvals/call-input.js": {
        r"/^[\w@%+=:,./-]+$/": ONE_WAY,
    },
    "gateway/console/static/js/approvals/exact-text.js": {
        r"/(?![\t\n ])[\p{Cc}\p{Cf}\p{Cs}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]/gu": FIXED,
    },
    "gateway/console/static/js/approvals/notifications.js": {
        r"/^\(\d+\) /": ONE_WAY,
    },
    "gateway/console/static/js/composer/application-tools.js": {
        r"/position (\d+)/": ONE_CLASS,
        r"/ in JSON.*| \(line.*/": ONE_CLASS,
    },
    "gateway/console/static/js/composer/completion.js": {
        r"/^\s*\/([^\s/]*)$/": ONE_WAY,
        r"/^\S*/": ONE_WAY,
        r'/(?:^|\s)@("?)([^\s"]*|(?<=@")[^"\n]*)$/': ONE_START,
        r"/^\s/": FIXED,
        r'/[\s"]/': FIXED,
    },
    "gateway/console/static/js/composer/new-session.js": {
        r"/(?<!\/)\/+$/": ONE_START,
    },
    "gateway/console/static/js/conversation/ansi.js": {
        r"/\u001b[\]PX^_][^\u0007\u001b]{0,65536}(?:\u0007|\u001b\\)?/g": FIXED,
        r"/\u001b\[([0-9;:?<=>]*)[ -/]*([@-~]|$)|\u001b[ -/]*[0-~]?/g": ONE_CLASS,
        r"/(?:[^\n\u0008]|^)\u0008/gm": FIXED,
        "/[;:]/": FIXED,
    },
    "gateway/console/static/js/conversation/code-block.js": {
        "/^dockerfile/i": FIXED,
        "/^makefile/i": FIXED,
        r"/[\s,{:]/": FIXED,
    },
    "gateway/console/static/js/conversation/error-advice.js": {
        r"/(api[ _-]?key|unauthori[sz]ed|authenticat|log ?in|logged in|\b401\b|\b403\b|credential|oauth)/i": FIXED,
        r"/(usage limit|rate.?limit|too many requests|\b429\b|quota|overloaded|\b529\b|credit)/i": FIXED,
        "/(context (window|length)|too (many tokens|long)|maximum context|prompt is too long)/i": FIXED,
        "/(not found|no such file|ENOENT|not installed|cannot be started|could not start|does not start)/i": FIXED,
        r"/(network|connect|ECONN|ENOTFOUND|timed? ?out|timeout|dns|unreachable|\b50[0-4]\b)/i": FIXED,
        "/(gateway was stopped|signal|killed|SIG[A-Z]+|exit code|crash|ended unexpectedly|out of memory)/i": ONE_START,
    },
    "gateway/console/static/js/conversation/diff.js": {
        r"/\r$/": FIXED,
    },
    "gateway/console/static/js/conversation/file-changes.js": {
        r"/^(?:---|\+\+\+|diff|index) /": FIXED,
        "/^(?:new file|deleted file|rename|similarity|copy|old mode|new mode) /": FIXED,
        "/^@@ /m": FIXED,
        r"/^@@(?: -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@)?([^]*)$/": ONE_WAY,
        "/^[-+ ]/": FIXED,
        "/^@@/m": FIXED,
        "/^--- /m": FIXED,
        r"/^\*\*\* (Add|Update|Delete) File: ([^]*)$/": ONE_WAY,
        r"/^\*\*\* Move to: ([^]*)$/": ONE_WAY,
        r"/^\+/": FIXED,
        r"/^cell-(\d+)$/": ONE_WAY,
        "/write|create|note|edit/i": FIXED,
        r"/\w/": FIXED,
    },
    "gateway/console/static/js/conversation/items.js": {
        r"/\s+/g": ONE_CLASS,
        "/_/g": FIXED,
    },
    "gateway/console/static/js/conversation/markdown.js": {
        r"/^(?:https?:\/\/|mailto:)[^\s]+$/i": ONE_WAY,
        r"/^data:image\/(?:png|jpe?g|gif|webp|avif|bmp);base64,[a-z0-9+/=\s]+$/i": ONE_WAY,
        r"/\s/g": FIXED,
        "/&/g": FIXED,
        "/</g": FIXED,
        "/>/g": FIXED,
        '/"/g': FIXED,
        r"/[ \t]{300}|(?:^|[^\w.!#$%&'*+/=?`{|}~-])[\w.!#$%&'*+/=?`{|}~-]{300,}@|>(?: ?>){60}/m": ONE_START,
        r"/data:image\/[^\s)]*/g": ONE_CLASS,
        r"/(?:^|\s)language-(\S+)/": ONE_CLASS,
        r"/\n$/": FIXED,
        r"""/^[\p{L}\p{N}.,;:?")'}%/]$/u""": FIXED,
        r"/\s/": FIXED,
    },
    "gateway/console/static/js/conversation/output.js": {
        r"/[^\n]{2001,}/g": ONE_CLASS,
        r"/(?<!\n)\n+$/": ONE_START,
    },
    "gateway/console/static/js/conversation/safe-text.js": {
        r"/\r(?=\n)|[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\u{e0000}-\u{e007f}]/gu": FIXED,  # noqa: E501
        r"/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\u{e0000}-\u{e007f}]/u": FIXED,
    },
    "gateway/console/static/js/conversation/steps.js": {
        r"/[\s-]/g": FIXED,
        "/^(todowrite|todo_write|write_todos|update_plan|todo)$/i": FIXED,
        "/^taskcreate$/i": FIXED,
        "/^taskupdate$/i": FIXED,
        r"/^Task #(\w+) created/": ONE_WAY,
    },
    "gateway/console/static/js/conversation/timeline.js": {
        r"/^(?:PreToolUse:\S+ hook error: )?Tool call denied/": ONE_WAY,
        "/^Tool call cancelled/": FIXED,
        r"/^\s*\n/": ONE_WAY,
    },
    "gateway/console/static/js/conversation/tool-title.js": {
        "/^(bash|shell|sh|execute|exec|exec_command|run_shell_command|run_command|terminal|local_shell|powershell|killshell|bashoutput)$/i": FIXED,  # noqa: E501
        "/^(edit|multiedit|write|notebookedit|apply_patch|write_file|replace|write_note|str_replace.*|create_file|delete|move|write_text_file|search_replace)$/i": ONE_WAY,  # noqa: E501
        "/^(read|read_file|read_many_files|view_image|view|cat|read_text_file|notebookread)$/i": FIXED,
        "/^(grep|glob|search|ls|find|list_directory|search_file_content|grep_search|lookup|toolsearch|list_dir)$/i": FIXED,
        "/^(webfetch|websearch|web_search|web_fetch|fetch|google_web_search)$/i": FIXED,
        "/^(todowrite|todo_write|write_todos|update_plan|task(create|update|list|get)|todo)$/i": FIXED,
        "/^(agent|task|spawn_agent|delegate.*|sub-?agent)$/i": ONE_WAY,
        "/^(askuserquestion|request_user_input|ask_user.*)$/i": ONE_WAY,
        "/^(exitplanmode|enterplanmode|exit_plan_mode|implement_plan|switch_mode)$/i": FIXED,
        "/path$/": FIXED,
        "/^mcp__(.+?)__(.+)$/": ONE_WAY,
    },
    "gateway/console/static/js/fuzzy.js": {
        r"/\s+/": ONE_CLASS,
        r"/[\s/\\_.:,-]/": FIXED,
    },
    "gateway/console/static/js/pages/curl.js": {
        "/^[A-Za-z0-9_./:@%+=,-]+$/": ONE_WAY,
    },
    "gateway/console/static/js/pages/format.js": {
        r"/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/gu": FIXED,
    },
    "gateway/console/static/js/pages/policy-page.js": {
        "/^(bash|shell|execute|run_shell_command)$/i": FIXED,
    },
    "gateway/console/static/js/pages/prometheus.js": {
        r'/(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"/g': ONE_START,
        r"/^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?$/": ONE_START,
        r"/\\(.)/g": FIXED,
    },
    "gateway/console/static/js/router.js": {
        r"/^\/+|(?<!\/)\/+$/g": ONE_START,
    },
    "gateway/console/static/js/shortcuts.js": {
        "/Mac|iPhone|iPad/": FIXED,
        "/^(TEXTAREA|SELECT)$/": FIXED,
        "/^(checkbox|radio|button)$/": FIXED,
        "/^[A-Z]$/": FIXED,
        "/^[a-z?]$/": FIXED,
    },
    "gateway/console/static/js/sign-in.js": {
        "/^#code=([^&]+)/": ONE_WAY,
    },
    "gateway/console/static/js/ui/menu.js": {
        r"/\S/": FIXED,
    },
}
"""By file and by the text of the pattern, or of the expression that makes it."""


@dataclass(frozen=True)
class Built:
    """A pattern that is made of a variable: an example of it, and its use."""

    reason: str
    example: re.Pattern[Any]
    use: str


BUILT: Mapping[tuple[str, str], Built] = {
    ("gateway/agents/environment.py", "'|'.join(map(fnmatch.translate, patterns))"): Built(
        "The patterns are the configuration's, and fnmatch makes repeats that give nothing back.",
        re.compile("|".join(map(fnmatch.translate, ("*A*B*", "C?D*")))),
        "match",
    ),
    ("gateway/agents/ignore_rules.py", "fnmatch.translate(escaped.replace('[^', '[!'))"): Built(
        "fnmatch makes repeats that give nothing back: a repository's pattern takes at most its own length times that of a name.",
        re.compile(fnmatch.translate("*a*a*[!b]*a?b")),
        "match",
    ),
    ("gateway/policy/rules.py", "expression"): Built(FIXED, re.compile("a.b", re.DOTALL), "search"),
    ("gateway/policy/shell_syntax.py", r"""'\\\\([$`\\\\"])' if quoted else '\\\\([$`\\\\])'"""): Built(
        FIXED, re.compile(r'\\([$`\\"])'), "finditer"
    ),
    ("gateway/protocols/authenticated_routes.py", "pattern"): Built(
        "The repeat is possessive and has an upper bound, and it ends before the next field of the name.",
        re.compile(rb'"auth_token"\s*:\s*("(?:[^"\\]|\\.){0,4096}+")'),
        "finditer",
    ),
    ("gateway/server/host_origin.py", "'|'.join(parts)"): Built(
        ONE_WAY, re.compile(r"app://[^\s/]+|http://localhost(:\d+)?"), "fullmatch"
    ),
    ("drivers/script/program/scenario.py", "when"): Built(OF_AUTHOR, re.compile("a{1,9}b"), "search"),
    ("drivers/script/schema.py", "value"): Built(OF_AUTHOR, re.compile("a{1,9}b"), "search"),
}
"""By file and by the text of the expression."""
