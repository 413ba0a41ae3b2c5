"""Why each access to files that does not go through drivers/runtime/confined_files.py is safe from the links of an agent.

By reason, then by module: the functions and methods, each with how often the module has it.
"""

from __future__ import annotations

REASONS = {
    "It is what the others go through.": {
        "drivers/runtime/confined_files.py": "open os.chmod os.listdir*2 os.mkdir os.open*5 os.rename*2 os.rmdir*2 os.symlink "
        "os.unlink*4",
    },
    "In the data directory, in folders where no agent in a sandbox or a container writes.": {
        "drivers/runtime/temporary_folder.py": "glob tempfile.mkdtemp",
        "gateway/agents/probe_cache.py": "open read_text replace",
        "gateway/cli/acp.py": "read_text*2",
        "gateway/cli/local_daemon.py": "read_bytes",
        "gateway/cli/terminal_turn.py": "TemporaryDirectory",
        "gateway/diagnosis/agents.py": "shutil.copyfile",
        "gateway/diagnosis/data_folder.py": "read_text*2",
        "gateway/diagnosis/diagnosis.py": "TemporaryDirectory",
        "gateway/observability/logs.py": "open os.replace",
        "gateway/observability/transcripts.py": "glob*2 open os.replace unlink*2",
        "gateway/private_files.py": "chmod*2 glob mkdir os.open os.scandir",
        "gateway/protocols/acp/transport/local_socket.py": "open os.chmod os.unlink read_bytes replace unlink*2",
        "gateway/runs/one_shot_tasks.py": "glob",
        "gateway/security/encryption.py": "read_text*2",
        "gateway/security/secret_files.py": "open os.link os.replace os.unlink read_text*2 tempfile.mkstemp",
        "gateway/server/data_dir_lock.py": "os.open",
        "gateway/cluster/sessions.py": "os.scandir",
        "gateway/worktrees/confinement.py": "rmdir tempfile.mkdtemp",
        "gateway/worktrees/own_config.py": "mkdir symlink_to tempfile.mkdtemp write_bytes*2",
    },
    "The configuration and other files of the user, which a command of the user or the start reads and writes.": {
        "gateway/cli/agents.py": "read_bytes",
        "gateway/cli/editor.py": "read_text",
        "gateway/cli/file_replacement.py": "mkdir open os.chmod os.replace os.unlink tempfile.mkstemp",
        "gateway/cli/launchd.py": "mkdir open read_bytes unlink",
        "gateway/cli/main.py": "os.open",
        "gateway/cli/store.py": "unlink",
        "gateway/cli/systemd.py": "read_bytes read_text unlink",
        "gateway/config.py": "read_text",
        "gateway/cluster/node_keys.py": "read_text",
    },
    "Files of the installed package or environment.": {
        "drivers/acp/catalogue.py": "open",
        "drivers/claude/tools.py": "read_text",
        "drivers/compatibility.py": "read_bytes",
        "gateway/console/static_files.py": "read_bytes",
        "gateway/installation.py": "read_text*3",
        "gateway/store/schema.py": "read_text",
    },
    "The kit for tests, which runs in a test of a user and uses that user's own files.": {
        "gateway/portico_testing/__init__.py": "mkdir open read_text*3 touch write_text",
    },
    "The kernel's own files, a lock of the data directory, or the null device.": {
        "drivers/runtime/process_tree.py": "os.listdir os.open*2",
        "gateway/cli/serve.py": "open",
        "gateway/cli/signals.py": "os.open",
        "gateway/diagnosis/daemon.py": "os.open read_bytes read_text*2",
    },
    "A temporary file without a name, in the data directory or that of the database; and a method of the store.": {
        "gateway/observability/health.py": "TemporaryFile touch",
        "gateway/store/store.py": "touch",
    },
    "A folder is created above which only the gateway and the user write: that of a session's state, or the CLI's own in the "
    "user's home.": {
        "drivers/gemini/home.py": "iterdir mkdir",
        "drivers/runtime/containers.py": "mkdir*2",
    },
    "Without a sandbox or a container only, where the agent itself may write anywhere. In these, files are written through "
    "confined_files.": {
        "drivers/runtime/process.py": "mkdir*2 os.open*2",
    },
    "It makes the rules of the sandbox. Paths that an agent may have replaced are opened without following links.": {
        "drivers/runtime/sandbox.py": "mkdir os.open os.scandir",
    },
    "Names of files are listed, of which none is opened; a link leads to names that every agent can list.": {
        "drivers/codex/driver.py": "glob*2",
        "drivers/gemini/modes.py": "iterdir",
        "gateway/agents/folder_completion.py": "os.scandir",
    },
    "The folder is a descriptor from confined_files.": {
        "gateway/agents/folder_files.py": "os.scandir",
    },
    "The index of git in the operation's private folder; and names of files are listed, of which none is opened.": {
        "gateway/worktrees/checkout.py": "iterdir*3 mkdir open os.utime unlink",
    },
    "No link is followed, and what is read is compared only: no answer has it.": {
        "gateway/worktrees/source.py": "os.open",
    },
    "The folder of worktrees, where only the gateway and git of it write; the file is a descriptor from confined_files.": {
        "gateway/worktrees/worktrees.py": "glob mkdir open",
    },
    "The folder of a socket, whose owner is checked.": {
        "gateway/security/socket_peer.py": "os.open",
    },
    "It runs as an agent, or is a tool of who writes a driver.": {
        "drivers/script/program/files.py": "open os.makedirs",
        "drivers/testing/__init__.py": "tempfile.TemporaryDirectory",
        "drivers/testing/__main__.py": "tempfile.TemporaryDirectory",
        "drivers/testing/driver_under_test.py": "mkdir*2",
    },
    "Methods of other objects, with the names of methods of paths.": {
        "drivers/acp/codec.py": "read_text",
        "gateway/protocols/aap/session_changes.py": "rename",
        "gateway/protocols/acp/session_methods.py": "rename",
    },
}
