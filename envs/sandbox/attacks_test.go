package sandbox

import "testing"

// attack is a program that tries to escape, to persist, or to exhaust the machine. It prints ESCAPED on success.
type attack struct {
	name, program string
	slow          bool // for `make crash`
	contained     bool // blocked only by isolation stronger than limits
}

// common precedes each attack. OUTSIDE is a file of the machine, next to which OUTSIDE.socket listens; PARENT is a
// process id.
const common = `
import os, sys, time, signal, errno
def no(f, *args):
    try: r = f(*args)
    except Exception as e: return print('refused', type(e).__name__, e)
    print('ESCAPED', r)
def call(number, *args):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    r = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if r == -1: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return r
`

// slowAttacks reports whether `make crash` runs the tests, which has more time.
var slowAttacks = false

func slow() bool { return slowAttacks && !testing.Short() }

var attacks = []attack{
	{name: "fork bomb", program: "while True:\n try: os.fork()\n except OSError: pass"},
	{name: "forks count", program: "n = 0\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(9); os._exit(0)\n    n += 1\nexcept OSError: pass\nprint('ESCAPED' if n > 40 else n)", contained: true},
	{name: "thread bomb", program: "import threading\nn = 0\ntry:\n  while True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start(); n += 1\nexcept RuntimeError: pass\nprint('ESCAPED' if n > 400 else n)\nsys.stdout.flush(); os._exit(0)"},
	{name: "setsid daemon", program: "if os.fork() == 0:\n os.setsid()\n for i in range(3): os.close(i)\n time.sleep(60)\n", contained: true},
	{name: "double fork daemon", program: "if os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  os.setsid()\n  signal.signal(signal.SIGTERM, signal.SIG_IGN)\n  time.sleep(60)\n os._exit(0)\n", contained: true},
	{name: "daemon holding pipes", program: "if os.fork() == 0:\n os.setsid(); time.sleep(60)\nprint('parent ends')", contained: true},
	{name: "forking runaway", program: "while True:\n if os.fork(): os._exit(0)", contained: true},
	{name: "ignores signals", program: "for s in range(1, 65):\n try: signal.signal(s, signal.SIG_IGN)\n except (OSError, ValueError): pass\nwhile True: pass"},
	{name: "stops itself", program: "os.kill(os.getpid(), signal.SIGSTOP)"},
	{name: "endless output", program: "while True: os.write(1, b'x' * 65536)"},
	{name: "endless output of children", program: "try:\n for i in range(9):\n  os.fork()\nexcept OSError: pass\nwhile True: os.write(2, b'x' * 65536)"},
	{name: "huge line", program: "print('x' * (50 << 20))"},
	{name: "memory", program: "x = []\nwhile True: x.append(bytearray(b'x' * (16 << 20)))"},
	{name: "memory of children", program: "try:\n for i in range(4): os.fork()\nexcept OSError: pass\nx = []\nwhile True:\n try: x.append(bytearray(b'x' * (8 << 20)))\n except MemoryError: time.sleep(.01)"},
	{name: "memory of orphans", program: "if os.fork(): time.sleep(9); os._exit(0)\nif os.fork(): os._exit(0)\nx = []\nwhile len(x) < 400: x.append(bytearray(b'x' * (1 << 20)))\nprint('ESCAPED', flush=True)\ntime.sleep(9)", contained: true},
	{name: "memory without a first thread", program: "import ctypes, threading\ndef f():\n x = []\n while len(x) < 170: x.append(bytearray(b'x' * (1 << 20)))\n os.write(1, b'ESCAPED')\n time.sleep(9)\nthreading.Thread(target=f).start()\nctypes.CDLL(None).syscall(60, 0)"},
	{name: "shared memory", program: "import mmap\nno(mmap.mmap, -1, 64 << 20)\nm = mmap.mmap(os.open('/dev/zero', os.O_RDWR), 64 << 20)\nprint('ESCAPED')", contained: true},
	{name: "huge pages", program: "no(call, 9, 0, 2 << 20, 3, 0x40022, -1, 0)", contained: true},
	{name: "memfd", program: "no(os.memfd_create, 'x')", contained: true},
	{name: "reads outside", program: "no(lambda: open('OUTSIDE').read())", contained: true},
	{name: "reads passwd", program: "no(lambda: open('/etc/passwd').read()); no(lambda: open('/etc/shadow').read()); no(lambda: open('/etc/hostname').read())", contained: true},
	{name: "lists homes", program: "for d in ['/home', '/root', '/var', '/proc', '/sys', '/run', '/mnt']:\n try: r = os.listdir(d)\n except OSError as e: continue\n print('ESCAPED' if [x for x in r if x != '.pyenv'] else 'empty', d, r)", contained: true},
	{name: "environment", program: "print(os.environ); no(lambda: open('/proc/self/environ').read()); no(lambda: open('/proc/PARENT/environ').read())", contained: true},
	{name: "environment only", program: "print(os.environ)"},
	{name: "proc of others", program: "for p in ['/proc/1/root/etc/passwd', '/proc/PARENT/root/etc/passwd', '/proc/PARENT/mem', '/proc/self/root/etc/passwd', '/proc/cpuinfo', '/proc/self/maps', '/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern', '/sys/kernel/mm']: no(lambda: open(p).read())", contained: true},
	{name: "writes outside", program: "for p in ['OUTSIDE', '/usr/x', '/lib/x', '/x', '/etc/x', '/var/tmp/x', '/dev/shm/x', '/root/x', '/dev/x', sys.prefix + '/x', os.__file__, sys.executable]: no(lambda: open(p, 'w').write('x'))", contained: true},
	{name: "unlinks outside", program: "for f in [os.unlink, os.rmdir, lambda p: os.rename(p, '/tmp/y'), lambda p: os.chmod(p, 0o777), lambda p: os.truncate(p, 0), lambda p: os.utime(p)]: no(f, 'OUTSIDE')", contained: true},
	{name: "changes what it cannot write", program: "def on(f, *args):\n fd = os.open('OUTSIDE', 0x200000)\n return f(fd, *args)\nfor f in [lambda p: os.utime(p, (1, 1)), lambda p: os.chown(p, -1, os.getgid()), lambda p: os.chmod(p, 0o777), lambda p: os.setxattr(p, 'user.x', b'x'), lambda p: os.removexattr(p, 'user.x'), lambda p: on(os.fchmod, 0o777), lambda p: on(os.fchown, -1, os.getgid())]: no(f, 'OUTSIDE')\nno(call, 452, -100, b'OUTSIDE', 0o777, 0); no(call, 469, -100, b'OUTSIDE', b'x' * 64, 24, 0)", contained: true},
	{name: "changes what it reads", program: "import fcntl\nfor p in [os.__file__, sys.executable]:\n for f in [lambda p: os.utime(p, (1, 1)), lambda p: os.chmod(p, 0o777), lambda p: os.setxattr(p, 'user.x', b'x'), lambda p: open(p, 'r+b')]: no(f, p)", contained: true},
	{name: "changes flags of what it reads", program: "import fcntl\nfor p in [sys.argv[0], os.path.dirname(sys.argv[0]), os.__file__, sys.executable]:\n try: f = os.open(p, os.O_RDONLY)\n except OSError as e: print(e); continue\n for c in [0x40086602, 0x40087602, 0x401c5820, 0x40806685, 0xc020660b, 0x81009431, 0xc0045877, 0xc0185879]: no(fcntl.ioctl, f, c, bytearray(256))", contained: true},
	{name: "times of devices", program: "for p in ['/dev/null', '/dev/urandom', '/dev/random']:\n no(os.utime, p); no(os.utime, p, (1, 1)); no(os.chmod, p, 0o777)\n open(p, 'r+b', buffering=0).write(b'x')", contained: true},
	{name: "attributes without end", program: "n = 0\ntry:\n  for k in range(2000):\n    open('/tmp/x%d' % k, 'w').close()\n    try:\n      for i in range(2000): os.setxattr('/tmp/x%d' % k, 'user.%d' % i, b'x' * 60000); n += 60000\n    except OSError as e: print(e)\nexcept OSError as e: print(e)\nprint('ESCAPED' if n > 64 << 20 else n)", contained: true},
	{name: "siblings", program: "for flags in [0x8000 | 17, 0x8000 | 9, 0x808000]:\n try: p = call(56, flags, 0, 0, 0, 0)\n except OSError as e: print(e); continue\n if p == 0 and flags & 0xff: os._exit(7)\n if p == 0: os.setsid(); os.closerange(0, 3); time.sleep(60)\ntime.sleep(.2)\nprint('still here')", contained: true},
	{name: "handles of processes", program: "import socket, struct, fcntl\na, b = socket.socketpair()\ntry: p = struct.unpack('i', a.getsockopt(1, 77, 4))[0]\nexcept OSError as e: print(e); p = 0\nfor c in range(0xff01, 0xff0b): no(fcntl.ioctl, p, c)\nno(call, 424, p, 0, 0, 0); no(call, 438, p, 0, 0)", contained: true},
	{name: "groups of processes", program: "no(os.setpgid, 0, PARENT); no(os.kill, -PARENT, 0); no(os.killpg, PARENT, 0); no(call, 157, 62, 2, PARENT, 0, 0); no(call, 274, PARENT, b' ' * 8, b' ' * 8)", contained: true},
	{name: "files without names", program: "for d in ['/', '/usr', '/usr/lib', '/var/tmp', '/dev/shm', '/dev', '/etc', os.path.dirname(os.__file__)]: no(os.open, d, os.O_TMPFILE | os.O_RDWR)", contained: true},
	{name: "a filter of its own", program: "import ctypes, struct\nc = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\np = struct.pack('HxxxxxxP', 1, ctypes.addressof(c))\nprint(call(317, 1, 0, p))\nno(call, 41, 2, 1, 0); no(call, 165, b'x', b'/tmp', b'tmpfs', 0, 0)", contained: true},
	{name: "goes where it cannot read", program: "for d in ['/root', '/home', '/var', '/proc/PARENT/cwd', '/proc/self/cwd', os.path.dirname('OUTSIDE')]:\n try: os.chdir(d)\n except OSError as e: print(e); continue\n try: r = os.listdir('.')\n except OSError as e: print(e); continue\n print('ESCAPED' if [x for x in r if x != '.pyenv'] else 'empty')\nno(os.readlink, '/proc/PARENT/exe'); no(os.readlink, '/proc/PARENT/fd/0')", contained: true},
	{name: "timers", program: "import ctypes\nn = 0\nfor i in range(100000):\n b = ctypes.create_string_buffer(8)\n try: call(222, 1, 0, b); n += 1\n except OSError: break\nprint('ESCAPED' if n > 9999 else 'fine')\nsignal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)\ntime.sleep(1)"},
	{name: "queues of sockets", program: "import socket\nx = []\ntry:\n  while True:\n    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET); a.setblocking(False); x.append((a, b))\n    try:\n      while True: a.send(b'x' * 65536)\n    except BlockingIOError: pass\nexcept OSError as e: print(len(x), e)"},
	{name: "passes files in files", program: "import socket\na, b = socket.socketpair()\nn = 0\ntry:\n  while n < 100000:\n    c, d = socket.socketpair(); socket.send_fds(a, [b'x'], [c.fileno(), d.fileno()]); c.close(); d.close(); n += 1\nexcept (OSError, AttributeError): pass\nprint('ESCAPED' if n > 9999 else n)"},
	{name: "symlinks", program: "try:\n os.symlink('OUTSIDE', '/tmp/l')\nexcept OSError as e: print(e)\nno(lambda: open('/tmp/l').read())\ntry:\n os.symlink('/', '/tmp/r')\nexcept OSError as e: print(e)\nno(lambda: open('/tmp/r/OUTSIDE').read())", contained: true},
	{name: "hard links", program: "no(os.link, 'OUTSIDE', '/tmp/h'); no(os.link, sys.executable, '/tmp/h')", contained: true},
	{name: "climbs", program: "no(lambda: open('../' * 40 + 'OUTSIDE').read()); no(lambda: open('/tmp/../OUTSIDE').read())", contained: true},
	{name: "network", program: "import socket\nfor f in [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, 16, 17, 38]:\n for k in [1, 2, 3]: no(socket.socket, f, k)", contained: true},
	{name: "abstract socket", program: "import socket\nno(lambda: socket.socket(socket.AF_UNIX).connect('\\0x'))\na, b = socket.socketpair()\nno(a.bind, '\\0x')\nno(b.connect, '\\0x')", contained: true},
	{name: "sends to names", program: "import socket\nfor k in [socket.SOCK_DGRAM, socket.SOCK_RAW]: no(socket.socketpair, socket.AF_UNIX, k)\nfor k in [socket.SOCK_STREAM, socket.SOCK_SEQPACKET]:\n a, b = socket.socketpair(socket.AF_UNIX, k)\n for n in ['OUTSIDE.socket', '\\0OUTSIDE.socket']:\n  try: a.sendto(b'x', n)\n  except OSError as e: print(e)", contained: true},
	{name: "resolves names", program: "import socket\nno(socket.gethostbyname, 'example.com')", contained: true},
	{name: "namespaces", program: "for f in [0x10000000, 0x20000000, 0x20000, 0x40000000, 0x8000000, 0x4000000, 0x2000000, 0x80]:\n no(call, 272, f)\n if f != 0x80: no(call, 56, f | 17, 0, 0, 0, 0)\nno(call, 435, 0, 0); no(call, 308, 0, 0)", contained: true},
	{name: "mounts", program: "no(call, 165, b'x', b'/tmp', b'tmpfs', 0, 0); no(call, 165, b'/', b'/tmp', 0, 4096, 0); no(call, 166, b'/tmp', 2); no(call, 155, b'/', b'/tmp'); no(call, 161, b'/usr'); no(call, 428, -100, b'/', 1); no(call, 430, b'tmpfs', 0); no(call, 442, -100, b'/', 0, 0, 0)", contained: true},
	{name: "ptrace", program: "no(call, 101, 0, 0, 0, 0); no(call, 101, 16, PARENT, 0, 0); no(call, 101, 16, os.getppid() or 1, 0, 0); no(call, 310, PARENT, 0, 0, 0, 0, 0); no(call, 312, PARENT, PARENT, 0, 0, 0)", contained: true},
	{name: "io_uring, userfaultfd, bpf", program: "import ctypes\nb = ctypes.create_string_buffer(256)\nno(call, 425, 1, b); no(call, 323, 0); no(call, 323, 1); no(call, 321, 0, b, 120); no(call, 298, b, 0, -1, -1, 0); no(call, 250, 0, 0); no(call, 248, b'user', b'x', b'x', 1, -3); no(call, 304, -100, b, 0); no(call, 303, -100, b'/tmp', b, b, 0)", contained: true},
	{name: "kernel", program: "import ctypes\nb = ctypes.create_string_buffer(256)\nfor n in [169, 175, 313, 246, 320, 170, 171, 172, 173, 103, 163, 167, 164, 227, 305, 153, 134, 135, 154]: no(call, n, 0, b, 0)", contained: true},
	{name: "signals the parent", program: "for p in [PARENT, os.getppid()]:\n for s in [0, 9, 15, 19]: no(os.kill, p, s) if p > 1 else None\nno(call, 424, 3, 9, 0, 0); no(call, 434, PARENT, 0)", contained: true},
	{name: "signals the first process", program: "for s in list(range(1, 65)):\n try: os.kill(1, s)\n except OSError: pass\nprint('still here')"},
	{name: "signals all", program: "try: os.kill(-1, 9)\nexcept OSError as e: print(e)\nprint('still here')", contained: true},
	{name: "limits of others", program: "import resource\nno(resource.prlimit, PARENT, resource.RLIMIT_CPU, (1, 1)); no(os.setpriority, 0, 0, -5); no(os.setpriority, 2, 0, 19); no(os.sched_setaffinity, PARENT, {0}); no(call, 203, 1, 8, b'\\1')", contained: true},
	{name: "raises limits", program: "import resource\nfor r in [resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_AS]: no(resource.setrlimit, r, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))", contained: true},
	{name: "crashes for the machine's collector", program: "import resource\nno(resource.setrlimit, resource.RLIMIT_CORE, (0, 0)); no(resource.setrlimit, resource.RLIMIT_CORE, (2, 2)); no(resource.getrlimit, resource.RLIMIT_CORE)", contained: true},
	{name: "becomes root", program: "for f in [os.setuid, os.setgid, os.seteuid, os.setegid]: no(f, 0)\nno(os.setgroups, [0]); no(os.setresuid, 0, 0, 0)\nno(lambda: os.fchown(os.open('/tmp/x', os.O_CREAT), 0, 0))", contained: true},
	{name: "set-user-id programs", program: "import subprocess\nno(subprocess.check_output, ['/usr/bin/su', '-c', 'id']); no(subprocess.check_output, ['/usr/bin/passwd', '-S'])", contained: true},
	{name: "runs a program of its own", program: "open('/tmp/x', 'w').write('#!/bin/sh\\necho ESCAPED\\n'); os.chmod('/tmp/x', 0o755); os.execv('/tmp/x', ['x'])", contained: true},
	{name: "makes devices", program: "no(os.mknod, '/tmp/d', 0o60600, os.makedev(254, 0)); no(os.mknod, '/tmp/d', 0o20600, os.makedev(1, 1)); no(os.mkfifo, '/tmp/f'); no(lambda: open('/dev/vda', 'rb').read(1)); no(lambda: open('/dev/mem', 'rb')); no(lambda: open('/dev/kmsg')); no(lambda: open('/dev/tty')); no(lambda: open('/dev/fuse'))", contained: true},
	{name: "terminal", program: "import fcntl\nfor f in range(3):\n no(fcntl.ioctl, f, 0x5412, b'x'); no(fcntl.ioctl, f, 0x541C, b'\\2')", contained: true},
	{name: "signals by files", program: "import fcntl\nr, w = os.pipe()\nno(fcntl.fcntl, r, fcntl.F_SETOWN, PARENT); no(fcntl.fcntl, r, 10, 9)", contained: true},
	{name: "what stays in the kernel", program: "import ctypes\nb = ctypes.create_string_buffer(64)\nno(call, 29, 1, 4096, 0o1666); no(call, 64, 1, 1, 0o1666); no(call, 68, 1, 0o1666); no(call, 240, b'x', 0o102, 0o666, 0)\nfor n in [31, 66, 71]: no(call, n, 0, 0, 0, 0)\nfor n in [65, 220, 69, 70, 67]: no(call, n, 0, b, 1, 0)\nno(call, 253); no(call, 294, 0); no(call, 306, 1)", contained: true},
	{name: "parent's death", program: "no(call, 157, 1, 0, 0, 0, 0); no(call, 157, 36, 1, 0, 0, 0)", contained: true},
	{name: "fills the disk", program: "i = 0\nwhile True:\n try:\n  open('/tmp/%d' % i, 'wb').write(b'x' * (15 << 20)); i += 1\n except OSError as e: break\nprint('ESCAPED' if i > 5 else i)", contained: true},
	{name: "fills a file", program: "f = open('/tmp/f', 'wb')\nwhile True: f.write(b'x' * (1 << 20))", contained: true},
	{name: "fills the inodes", program: "i = 0\ntry:\n  while True: os.mkdir('/tmp/%d' % i); i += 1\nexcept OSError: pass\nprint('ESCAPED' if i > 5000 else i)", contained: true},
	{name: "deep folders", program: "try:\n  while True: os.mkdir('d'); os.chdir('d')\nexcept OSError as e: print(e)", contained: true},
	{name: "many files open", program: "x = []\ntry:\n  while True: x.append(os.dup(0))\nexcept OSError: pass\nprint('ESCAPED' if len(x) > 64 else len(x))"},
	{name: "inherited files", program: "for f in range(3, 256):\n try: os.fstat(f); print('ESCAPED', f)\n except OSError: pass"},
	{name: "deep recursion", program: "sys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()"},
	{name: "crashes", program: "import ctypes; ctypes.string_at(0)"},
	{name: "foreign calls", program: "import ctypes, mmap\nm = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)\nm.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')\nctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()\nprint('ESCAPED')", contained: true},
	{name: "x32 calls", program: "no(call, 0x40000000 + 39)", contained: true},
	{name: "writes NUL and escapes", program: "sys.stdout.buffer.write(b'\\0' * 100 + b'\\x1b]0;x\\x07\\x1b[31m' + bytes(range(256)))"},
	{name: "leaks the host", program: "print('ESCAPED' if os.uname().nodename != 'sandbox' and os.path.exists('/tmp') and not os.path.exists('/bin/sh') else 'fine')"},
	{name: "copies processor time", program: "x = 0\nwhile True: x += 1"},
	{name: "patches the standard library", program: "import builtins, json\nbuiltins.print = None\njson.dumps = None\nsys.modules.clear()"},
	{name: "closes everything", program: "os.closerange(0, 256)"},
	{name: "exits in a destructor", program: "class A:\n def __del__(self): os._exit(0)\na = A()"},
	{name: "sleeps in a signal handler", program: "signal.signal(signal.SIGALRM, lambda *a: time.sleep(9)); signal.alarm(1); time.sleep(9)"},
	{name: "vfork and exec", program: "import subprocess\nfor i in range(100):\n try: subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'], start_new_session=True)\n except OSError: pass", contained: true},
}
