"""Escapes and abuses: programs that try to do harm and print HARM where they think that they did.

Each begins with the names of the canaries (see canaries.py) and `harm`, which prints. Those in `HARMLESS_WITHOUT_WALLS` do nothing
to the machine but to canaries, so that they can be run without walls to see that the harm would have been noticed.
"""

from __future__ import annotations

PRELUDE = """
import ctypes, errno, os, resource, shutil, signal, socket, stat, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)

def harm(what=""):
    print("HARM", what, flush=True)

def attempt(action, what=""):
    try:
        action()
    except (OSError, ValueError, MemoryError):
        return
    harm(what)

def call(number, *arguments):
    ctypes.set_errno(0)
    return libc.syscall(number, *arguments)
"""

HARMLESS_WITHOUT_WALLS = {
    "read a secret file": "print(open(SECRET_FILE).read())",
    "read it through a symlink": "os.symlink(SECRET_FILE, 'link'); print(open('link').read())",
    "read it through a relative path": "print(open('../' * 40 + SECRET_FILE).read())",
    "read it through the root of process 1": "print(open('/proc/1/root' + SECRET_FILE).read())",
    "read it through its own root": "print(open('/proc/self/root' + SECRET_FILE).read())",
    "read it by a child program": "print(subprocess.run([sys.executable, '-c', f'print(open({SECRET_FILE!r}).read())'], capture_output=True).stdout)",
    "overwrite it": "open(SECRET_FILE, 'w').write('x')",
    "delete it by a symlinked folder": "os.symlink(os.path.dirname(SECRET_FILE), 'folder'); open('folder/secret.txt', 'w').close()",
    "write beside it": "open(OPEN_FOLDER + '/mine', 'w').write('x')",
    "hard-link a file out": "open('mine', 'w').close(); os.link('mine', OPEN_FOLDER + '/mine')",
    "move a file out": "open('mine', 'w').close(); shutil.move('mine', OPEN_FOLDER + '/mine')",
    "make a fifo outside": "os.mkfifo(OPEN_FOLDER + '/fifo')",
    "environment of the parent": "print(open('/proc/%d/environ' % os.getppid()).read())",
    "environment of everybody": """
for name in os.listdir('/proc'):
    if name.isdigit():
        try:
            print(open(f'/proc/{name}/environ', errors='replace').read())
        except OSError:
            pass
""",
    "own environment": "print(dict(os.environ))",
    "connect by tcp": "socket.create_connection(('127.0.0.1', TCP_PORT), 1)",
    "send by udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', UDP_PORT))",
    "connect by a unix socket": "s = socket.socket(socket.AF_UNIX); s.connect(UNIX_SOCKET)",
    "connect by an abstract unix socket": "s = socket.socket(socket.AF_UNIX); s.connect(ABSTRACT_SOCKET)",
    "signal the victim": "os.kill(VICTIM, signal.SIGKILL)",
    "signal the victim by pidfd": "signal.pidfd_send_signal(os.pidfd_open(VICTIM), signal.SIGKILL)",
    "leave a child": "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(30)', NONCE])",
    "leave a daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for descriptor in range(3):
            os.close(descriptor)
        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(30)', NONCE])
    os._exit(0)
""",
    "leave shared memory": "open('/dev/shm/' + NONCE, 'w').write('x')",
    "leave shared memory of multiprocessing": """
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *_: None
shared_memory.SharedMemory(NONCE, create=True, size=4096)
""",
}

ESCAPES = {
    "read /etc/passwd": "attempt(lambda: open('/etc/passwd')); attempt(lambda: open('/etc/shadow')); attempt(lambda: open('/etc/hostname'))",
    "list the host's folders": "[attempt(lambda f=f: os.listdir(f), f) for f in ('/home', '/var', '/mnt', '/opt', '/sys', '/boot', '/srv')]",
    "climb out of the root": "harm() if os.path.exists('../' * 40 + 'home') else None; attempt(lambda: os.listdir('/../../home'))",
    "read kernel files": """
for path in ('/proc/kcore', '/proc/kmsg', '/proc/kallsyms', '/proc/sysrq-trigger', '/proc/keys', '/proc/cmdline', '/proc/modules',
             '/proc/sys/kernel/core_pattern', '/sys/kernel/debug', '/dev/mem', '/dev/kmsg', '/dev/vda', '/dev/sda', '/dev/kvm', '/dev/tty'):
    attempt(lambda: open(path, 'rb').read(1), path)
""",
    "set the core pattern": "attempt(lambda: open('/proc/sys/kernel/core_pattern', 'w').write('|/x'))",
    "open raw and kernel sockets": """
for family, kind in ((socket.AF_INET, socket.SOCK_RAW), (socket.AF_INET6, socket.SOCK_STREAM), (17, socket.SOCK_RAW), (16, socket.SOCK_RAW),
                     (38, socket.SOCK_SEQPACKET), (40, socket.SOCK_STREAM), (44, socket.SOCK_RAW)):
    attempt(lambda: socket.socket(family, kind), family)
""",
    "find another network": "print('HARM') if [n for _, n in socket.if_nameindex() if n != 'lo'] else None",
    "resolve a name": "attempt(lambda: socket.getaddrinfo('example.com', 80))",
    "reach the machine's host by vsock": "attempt(lambda: socket.socket(40, socket.SOCK_STREAM).connect((2, 80)))",
    "trace the parent": "harm() if libc.ptrace(16, os.getppid(), 0, 0) == 0 else None; harm() if libc.ptrace(0, 0, 0, 0) == 0 else None",
    "read the memory of process 1": "attempt(lambda: open('/proc/1/mem', 'rb')); attempt(lambda: os.listdir('/proc/1/fd')); attempt(lambda: open('/proc/1/environ').read())",
    "read memory by a call": """
vector = (ctypes.c_ulong * 2)(id(libc), 8)
harm() if libc.process_vm_readv(1, vector, 1, vector, 1, 0) >= 0 else None
""",
    "take a descriptor of process 1": "harm() if call(438, os.pidfd_open(1), 1, 0) >= 0 else None",
    "kill process 1": """
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP, signal.SIGSEGV):
    try:
        os.kill(1, number)
    except PermissionError:
        pass
print("SURVIVED")
""",
    "kill everybody": """
try:
    os.kill(-1, signal.SIGKILL)
except OSError:
    pass
""",
    "kill the group": "os.killpg(0, signal.SIGKILL)",
    "leave by chroot": """
os.mkdir('jail')
descriptor = os.open('.', os.O_RDONLY)
attempt(lambda: os.chroot('jail'), 'chroot')
os.fchdir(descriptor)
for _ in range(40):
    os.chdir('..')
print('HARM') if os.path.exists('home') else None
""",
    "mount": """
for kind in (b'tmpfs', b'proc', b'sysfs', b'overlay', b'ext4'):
    harm(kind) if libc.mount(b'none', b'/space/home', kind, 0, b'') == 0 else None
harm('bind') if libc.mount(b'/', b'/space/home', None, 4096, None) == 0 else None
harm('remount') if libc.mount(None, b'/', None, 32 | 4096, None) == 0 else None
harm('umount') if libc.umount2(b'/space', 2) == 0 else None
""",
    "mount by the new calls": "[harm(n) for n in (428, 430, 433, 442) if call(n, -100, b'/', 0, 0, 0) >= 0]",
    "new namespaces": "[harm(hex(f)) for f in (0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000) if libc.unshare(f) == 0]",
    "new namespaces by clone": """
for flag in (0x10000000, 0x20000, 0x40000000):
    child = call(56, flag | 17, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    harm(hex(flag)) if child > 0 else None
""",
    "new namespaces by clone3": """
arguments = struct.pack('Q' * 8, 0x10000000, 0, 0, 0, 17, 0, 0, 0)
child = call(435, arguments, len(arguments))
if child == 0:
    os._exit(0)
harm() if child > 0 else None
""",
    "enter a namespace": "attempt(lambda: os.open('/proc/1/ns/mnt', 0)); harm() if libc.setns(os.open('/proc/self/ns/user', 0), 0) == 0 else None",
    "become root": """
for action in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.setresuid(0, 0, 0)):
    attempt(action)
attempt(lambda: os.write(os.open('/proc/self/uid_map', os.O_WRONLY), b'0 0 1'))
""",
    "run a set-user-id program": """
for folder in ('/usr/bin', '/bin', '/usr/sbin', '/usr/lib'):
    for name in ('su', 'sudo', 'mount', 'passwd', 'dbus-1.0/dbus-daemon-launch-helper', 'openssh/ssh-keysign'):
        if os.path.exists(f'{folder}/{name}'):
            subprocess.run([f'{folder}/{name}'], timeout=2)
            if os.getuid() == 0: harm()
shutil.copy(os.path.realpath(sys.executable), 'python')
os.chmod('python', 0o6755)
done = subprocess.run(['./python', '-c', 'import os; print(os.geteuid(), os.getresuid())'], capture_output=True, text=True)
harm(done.stdout) if done.stdout.startswith('0') else None
""",
    "gain capabilities": "print('HARM') if any(int(l.split()[1], 16) for l in open('/proc/self/status') if l.startswith('Cap')) else None",
    "call the kernel's interpreters": "[harm(n) for n in (321, 323, 298, 425, 250, 248, 249, 319, 29, 68, 240) if call(n, 0, 0, 0, 0, 0) >= 0]",
    "call by the other machine's numbers": "harm() if call(0x40000000 + 165, b'none', b'/space/home', b'tmpfs', 0, 0) == 0 else None",
    "load a module or reboot": "[harm(n) for n in (175, 313, 246, 169, 167) if call(n, 0, 0, 0, 0) == 0]",
    "set the clock and the name": "attempt(lambda: time.clock_settime(time.CLOCK_REALTIME, 0)); attempt(lambda: socket.sethostname('x'))",
    "make a device": "attempt(lambda: os.mknod('disk', stat.S_IFBLK | 0o666, os.makedev(254, 0))); attempt(lambda: open('disk', 'rb').read(1))",
    "write to the interpreter": """
import json
folders = [os.path.dirname(json.__file__), os.path.dirname(sys.executable), '/usr/lib', '/', '/etc', '/proc', '/dev', *sys.path[1:]]
for folder in folders:
    attempt(lambda: open(folder + '/canary', 'w'), folder)
attempt(lambda: open(json.__file__, 'a'))
attempt(lambda: os.chmod(json.__file__, 0o777))
attempt(lambda: os.unlink(json.__file__))
""",
    "raise limits": """
for which in (resource.RLIMIT_NPROC, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU):
    attempt(lambda: resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)), which)
""",
    "inherited descriptors": "print('HARM', os.listdir('/proc/self/fd')) if set(os.listdir('/proc/self/fd')) - {'0', '1', '2', '3'} else None",
    "write to the result channel": """
for number in range(3, 300):
    attempt(lambda: os.write(number, b'forged'), number)
attempt(lambda: os.open('/proc/1/fd/1', os.O_WRONLY))
os.close(1), os.close(2), os.close(0)
""",
    "duplicate standard output away": "os.dup2(os.open('/dev/null', os.O_WRONLY), 1); [os.dup(2) for _ in range(100)]",
    "find other processes": "others = [n for n in os.listdir('/proc') if n.isdigit() and int(n) not in (1, os.getpid())]; harm(others) if others else None",
    "raise its priority": "attempt(lambda: os.nice(-10)); attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))",
    "lock memory": "harm() if libc.mlockall(3) == 0 else None",
    "crash by ctypes": "ctypes.string_at(0)",
    "crash by recursion in C": "sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
    "abort": "os.abort()",
    "exit before output is read": "sys.stdout.write('x' * 50_000); sys.stdout.flush(); os._exit(0)",
    "input that never comes": "print('HARM') if sys.stdin.read() else None",
    "terminal tricks": "import fcntl, termios; [attempt(lambda: fcntl.ioctl(n, termios.TIOCSTI, b'x')) for n in range(4)]; attempt(lambda: open('/dev/tty'))",
}

ABUSES = {
    "fork bomb": ("while True:\n    try:\n        os.fork()\n    except OSError:\n        pass", {"timed_out", "finished"}),
    "fork bomb that leaves its parent": (
        "while True:\n    try:\n        if os.fork(): os._exit(0)\n    except OSError:\n        pass",
        {"finished"},
    ),
    "threads without end": ("while True:\n    threading.Thread(target=time.sleep, args=(60,)).start()", {"finished", "timed_out"}),
    "memory without end": ("kept = []\nwhile True: kept.append(bytearray(1_000_000))", {"out_of_memory"}),
    "memory at once": ("attempt(lambda: bytearray(10**11))", {"finished"}),
    "memory in children": (
        "for _ in range(8):\n    if os.fork() == 0:\n        kept = bytearray(os.urandom(1000) * 100_000); time.sleep(60)\ntime.sleep(60)",
        {"out_of_memory"},
    ),
    "memory in shared pages": ("import mmap\nkept = mmap.mmap(-1, 400_000_000)\nwhile kept.write(b'x' * 1_000_000): pass", {"out_of_memory", "finished"}),
    "disk without end": ("with open('f', 'wb') as file:\n    while True: file.write(bytes(1_000_000))", {"finished", "killed"}),
    "disk in many files": ("for n in range(200): open(f'f{n}', 'wb').write(bytes(1_000_000))", {"finished"}),
    "files without end": ("for n in range(10**7): open(f'/tmp/f{n}', 'w').close()", {"finished"}),
    "shared memory without end": ("for n in range(200): open(f'/dev/shm/f{n}', 'wb').write(bytes(1_000_000))", {"finished"}),
    "a file with a hole": ("attempt(lambda: os.truncate(os.open('f', os.O_CREAT | os.O_RDWR), 10**12))", {"finished", "killed"}),
    "zip bomb": ("import zlib\ndata = zlib.compress(bytes(10**8))\nkept = [zlib.decompress(data) for _ in range(100)]", {"out_of_memory", "finished", "timed_out"}),
    "output without end": ("while True: print('x' * 10_000)", {"output_limit"}),
    "errors without end": ("while True: print('x' * 10_000, file=sys.stderr)", {"output_limit"}),
    "sleep": ("time.sleep(60)", {"timed_out"}),
    "spin": ("while True: pass", {"timed_out"}),
    "sleep with signals ignored": ("[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15, 24)]\ntime.sleep(60)", {"timed_out"}),
    "stop itself": ("os.kill(os.getpid(), signal.SIGSTOP)", {"timed_out"}),
    "hold the output open": ("if os.fork() == 0: time.sleep(60)", {"finished"}),
    "pipes without end": ("kept = []\nwhile True: kept.append(os.pipe())", {"finished"}),
    "sockets full": (
        "kept = []\nwhile True:\n    a, b = socket.socketpair(); a.setblocking(False); kept += [a, b]\n"
        "    try:\n        while True: a.send(bytes(65536))\n    except BlockingIOError: pass",
        {"finished"},
    ),
    "a regular expression without end": ("import re; re.match(r'(a+)+$', 'a' * 64 + 'b')", {"timed_out"}),
    "a number without end": ("9 ** 9 ** 9", {"timed_out", "finished", "out_of_memory"}),
}
"""Programs that take more than they are given, with the endings that are right."""
