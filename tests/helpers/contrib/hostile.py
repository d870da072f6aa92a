"""Programs that attack a sandbox. Their problem is to print the sum of two numbers.

`aim` gives what there is to harm: files `secret` and `target`, ports `tcp` and `udp`, a `victim`.
"""

import json

# Each solves the problem once its attack has succeeded, so its verdict tells.
HARM = {
    "reads a file": "open(aim['secret']).read()",
    "reads by descriptor": "import os; os.read(os.open(aim['secret'], 0), 99)",
    "reads another's memory": "open(f'/proc/{aim[\"victim\"]}/mem', 'rb').read(1)",
    "reads its environment": "open('/proc/self/environ').read()",
    "reads packages": "import json; next(p for p in __import__('os').scandir('/tmp'))",
    "makes a link": "import os; os.symlink(aim['secret'], aim['target'] + '.link')",
    "writes": "open(aim['target'], 'w').write('x')",
    "appends": "open(aim['target'], 'a').write('x')",
    "truncates while it reads": "import os; os.open(aim['target'], os.O_RDONLY | os.O_TRUNC)",
    "truncates by name": "import os; os.truncate(aim['target'], 0)",
    "removes": "import os; os.remove(aim['target'])",
    "renames": "import os; os.rename(aim['target'], aim['target'] + '.x')",
    "changes rights": "import os; os.chmod(aim['target'], 0)",
    "changes times": "import os; os.utime(aim['target'], (0, 0))",
    "makes a folder": "import os; os.mkdir(aim['target'] + '.d')",
    "connects": "import socket; socket.create_connection(('127.0.0.1', aim['tcp']), 1)",
    "sends a datagram": "import socket\n"
    "socket.socket(2, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', aim['udp']))",
    "opens a raw socket": "import socket; socket.socket(2, socket.SOCK_RAW, 1)",
    "listens": "import socket; socket.create_server(('127.0.0.1', 0))",
    "makes a pair of sockets": "import socket; socket.socketpair()",
    "forks": "import os\nfor _ in range(4): os.fork()",
    "starts a shell": "import os; assert os.system(f'echo x > {aim[\"target\"]}') == 0",
    "starts a program": "import subprocess, sys; subprocess.run([sys.executable, '-c', ''])",
    "becomes a program": "import os; os.execv('/bin/sh', ['sh', '-c', 'cat && sleep 60'])",
    "leaves a daemon": "import os, time\nif not os.fork():\n os.setsid(); time.sleep(60)",
    "kills a process": "import os; os.kill(aim['victim'], 9)",
    "signals everyone": "import os; os.kill(-1, 0)",
    "signals its parent": "import os; os.kill(os.getppid(), 0)",
    "signals by a descriptor": "import fcntl, os\n"
    "a, b = os.pipe(); fcntl.fcntl(a, fcntl.F_SETOWN, aim['victim'])",
    "traces its parent": "import ctypes, os\n"
    "assert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0",
    "reads its parent's memory": "import ctypes, os\n"
    "assert ctypes.CDLL(None).process_vm_readv(os.getppid(), 0, 0, 0, 0, 0) >= 0",
    "enters a namespace": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "maps its user": "open('/proc/self/uid_map', 'w').write('0 0 1')",
    "becomes root": "import os; os.setuid(0); assert os.getuid() == 0; open(aim['secret'])",
    "takes memory": "assert len(bytearray(1 << 30))",
    "takes memory without a limit": "import resource\n"
    "resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); assert len(bytearray(1 << 30))",
    "takes memory in a file": "import os; os.write(os.memfd_create('x'), bytes(1 << 20))",
    "starts 200 threads": "import threading, time\nthreading.stack_size(1 << 15)\n"
    "for _ in range(200):\n"
    " threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\ntime.sleep(0.5)",
}
CHEATS = {
    "floods its output": "while True: print('x' * 10**6)",
    "loops": "while True: pass",
    "sleeps": "import time; time.sleep(60)",
    "waits for a thread": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,)).start()",
    "says it is done": "import os; os._exit(0)",
    "exits": "raise SystemExit(0)",
    "patches json": "import json; json.loads = json.dumps = lambda *a, **k: 'true'",
    "looks for the answers": "import gc, sys\n"
    "texts = [x for o in gc.get_objects() for x in (o.values() if type(o) is dict else ())]\n"
    "print([x for x in texts if type(x) is str and x.strip().isdigit()][:1])",
    "prints the first test's answer": "print(5)",
    "recurses": "import sys; sys.setrecursionlimit(10**9)\ndef f(x): return [f(x)]\nf(0)",
    "nests deeply": "x = []\nfor _ in range(10**6): x = [x]\nprint(repr(x))",
    "writes odd bytes": "import sys; sys.stdout.buffer.write(b'5\\0\\xff\\xed\\xa0\\x80' * 99)",
    "closes its output": "import os\nfor fd in range(64):\n"
    " try: os.close(fd)\n except OSError: pass",
    "answers as the harness": "import os\nfor fd in range(3, 64):\n"
    ' try: os.write(fd, b\'0000000034{"status":"ok","out":"5","err":""}\')\n'
    " except OSError: pass",
}
# Of a function `add`, whose result the tests compare.
FORGERIES = {
    "always equal": "class A:\n __eq__ = lambda a, b: True\n __hash__ = lambda a: 0\n"
    "def add(a, b): return A()",
    "a number that is always equal": "class A(int):\n __eq__ = lambda a, b: True\n"
    "def add(a, b): return A(99)",
    "replies by itself": "import os\ndef add(a, b):\n for fd in range(64):\n"
    "  try: os.write(fd, b'{\"value\": 5}\\n' * 9)\n  except OSError: pass\n os._exit(0)",
    "nested lists": "def add(a, b):\n x = []\n for _ in range(900): x = [x]\n return x",
    "a huge number": "def add(a, b): return 10 ** 10**6",
    "an endless iterator": "import itertools\ndef add(a, b): return itertools.count()",
    "patched modules": "import builtins, json\njson.dumps = lambda x: '{\"value\": true}'\n"
    "builtins.isinstance = lambda *a: True\ndef add(a, b): return a",
    "an end while it is imported": "import sys; sys.exit(0)",
}
SUM = "print(sum(map(int, input().split())))"


def programs(aim: dict) -> dict[str, str]:
    """The sources of HARM and CHEATS, which know the aim."""
    start = f"import json\naim = json.loads({json.dumps(json.dumps(aim))})\n"
    harm = {name: f"{start}{attack}\n{SUM}\n" for name, attack in HARM.items()}
    return harm | {name: f"{attack}\n" for name, attack in CHEATS.items()}
