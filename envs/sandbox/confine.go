package sandbox

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Paths in a program's file system.
const (
	stage = "/tmp" // on the machine: where a private namespace assembles the new root
	home  = "/tmp" // in the sandbox: the program's files; the only writable folder
)

const hostname = "sandbox"

// devices that a program may use. /dev/zero is excluded: mapping it gives memory that belongs to no process.
var devices = []string{"/dev/null", "/dev/urandom", "/dev/random"}

// means is how a program is isolated.
type means struct {
	Tier     Tier
	User     bool // an unprivileged user namespace, which the other namespaces need without root
	IDs      bool // a dedicated user, which needs root
	Landlock int  // version; 0 = none
	Seccomp  bool
}

// alone reports whether a program may not start other processes. Without a PID namespace nothing would stop them from
// outliving the program, and nothing could tell them from other processes of the same user.
func (m means) alone() bool { return m.Tier != Namespaces || m.User && os.Geteuid() == 0 }

// streams are the helper's open files that become the program's, from 0.
type streams []int

// confine lists the steps that start a program.
func confine(m means, l Limits, b box, at streams, errors int, ready [2]int, user int, dir string) *plan {
	p := &plan{errors: uintptr(errors), steps: newList()}
	p.do(&p.steps, "closing", unix.SYS_CLOSE, ready[1])
	p.do(&p.steps, "dying with the helper", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL), 0, 0, 0)
	p.do(&p.steps, "waiting for the helper", unix.SYS_READ, ready[0], make([]byte, 8), 1).least = 1
	p.do(&p.steps, "setting the mask of new files", unix.SYS_UMASK, 0o022)
	target := &p.steps
	if m.Tier == Namespaces {
		p.flags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
		if m.User {
			p.flags |= unix.CLONE_NEWUSER
		}
		mounts(p, b, l)
		p.target, p.waiting = newList(), newList()
		target = &p.target
		p.do(&p.waiting, "closing files", unix.SYS_CLOSE_RANGE, 0, errors-1, 0)
		p.do(&p.waiting, "closing files", unix.SYS_CLOSE_RANGE, errors+1, int(^uint32(0)), 0)
		p.do(target, "dying with the first process", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL), 0, 0, 0)
	}
	p.do(target, "beginning a session", unix.SYS_SETSID)
	for to, from := range at {
		p.do(target, "passing open files on", unix.SYS_DUP3, from, to, 0)
	}
	if m.Tier == Namespaces {
		p.do(target, "entering "+home, unix.SYS_CHDIR, home)
	} else {
		p.do(target, "entering "+dir, unix.SYS_CHDIR, dir)
	}
	limits(p, target, m, l)
	if m.IDs {
		// Drop the bounding set first, while it is still permitted.
		dropBounds(p, target)
		p.do(target, "leaving all groups", unix.SYS_SETGROUPS, 0, 0)
		p.do(target, "changing the group", unix.SYS_SETRESGID, user, user, user)
		p.do(target, "changing the user", unix.SYS_SETRESUID, user, user, user)
		p.do(target, "dying with the parent", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL), 0, 0, 0)
	} else {
		dropBounds(p, target)
	}
	header := make([]byte, 8)
	binary.LittleEndian.PutUint32(header, unix.LINUX_CAPABILITY_VERSION_3)
	p.do(target, "giving up inherited rights", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0).may = unix.EINVAL
	p.do(target, "giving up rights", unix.SYS_CAPSET, header, make([]byte, 24))
	p.do(target, "gaining no privileges", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if m.Landlock > 0 && m.Tier != Unsafe {
		landlock(p, target, m.Landlock, allowed(m, b, dir))
	}
	if m.Seccomp {
		newFilter(m, b.Waits).steps(p, target)
	}
	p.do(target, "unblocking signals", unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, make([]byte, 8), 0, 8)
	if b.Trial != nil {
		trial(p, target, m, *b.Trial)
		return p
	}
	p.do(target, "closing files at the start", unix.SYS_CLOSE_RANGE, len(at), int(^uint32(0)), unix.CLOSE_RANGE_CLOEXEC)
	argv, env := pointers(p, b.Argv), pointers(p, append([]string{"PATH=/usr/bin:/bin", "HOME=" + home, "LANG=C.UTF-8", "LC_ALL=C.UTF-8"}, b.Env...))
	if l.AddressSpace > 0 {
		setLimit(p, target, unix.RLIMIT_AS, uint64(l.AddressSpace))
	}
	p.do(target, "starting "+b.Argv[0], unix.SYS_EXECVE, b.Argv[0], argv, env)
	return p
}

// pointers returns a C array of strings.
func pointers(p *plan, texts []string) unsafe.Pointer {
	list := make([]*byte, len(texts)+1)
	for i, text := range texts {
		list[i] = unsafe.SliceData(append([]byte(text), 0))
	}
	p.keep = append(p.keep, list)
	return unsafe.Pointer(unsafe.SliceData(list))
}

func dropBounds(p *plan, list *[]step) {
	last := unix.CAP_LAST_CAP
	if text, err := os.ReadFile("/proc/sys/kernel/cap_last_cap"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			last = n
		}
	}
	for c := range last + 1 {
		// Without the right to drop the set, it grants nothing: the process never gains privileges.
		p.do(list, "bounding rights", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0).may = unix.EPERM
	}
}

// setLimit lowers a limit, unless it is lower already.
func setLimit(p *plan, list *[]step, resource int, value uint64) {
	setLimits(p, list, resource, value, value)
}

// setLimits sets a soft limit, which signals the program, and a hard limit, which kills it.
func setLimits(p *plan, list *[]step, resource int, soft, hard uint64) {
	var now unix.Rlimit
	if unix.Getrlimit(resource, &now) == nil {
		soft, hard = min(soft, now.Max), min(hard, now.Max)
	}
	both := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, soft), hard)
	p.do(list, "setting limits", unix.SYS_PRLIMIT64, 0, resource, both, 0)
}

// limits bounds a single process; a watcher bounds the memory and the processor time of all.
func limits(p *plan, list *[]step, m means, l Limits) {
	seconds := uint64(l.Wall.Seconds()) + 2
	if l.CPU > 0 {
		seconds = uint64(l.seconds())
	}
	// The signal of the soft limit shows that it was reached; the final processor time may be slightly less.
	setLimits(p, list, unix.RLIMIT_CPU, seconds, seconds+1)
	// A limit of 1 byte writes nothing and also keeps crash collectors of the machine from being started.
	core := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), 1)
	p.do(list, "setting limits", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, core, 0).may = unix.EPERM // already 0
	setLimit(p, list, unix.RLIMIT_FSIZE, uint64(l.File))
	setLimit(p, list, unix.RLIMIT_NOFILE, 64)
	setLimit(p, list, unix.RLIMIT_MEMLOCK, 0)
	setLimit(p, list, unix.RLIMIT_MSGQUEUE, 0)
	setLimit(p, list, unix.RLIMIT_SIGPENDING, 256)
	setLimit(p, list, unix.RLIMIT_NICE, 0)
	setLimit(p, list, unix.RLIMIT_RTPRIO, 0)
	processes := uint64(l.Processes)
	if m.Tier != Namespaces && !m.IDs {
		processes += uint64(tasksOfUser()) // the limit counts all processes of the user
	}
	setLimit(p, list, unix.RLIMIT_NPROC, processes)
}

// tasksOfUser counts the threads of this user's processes.
func tasksOfUser() int {
	n := 0
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		var s unix.Stat_t
		if unix.Stat(folder, &s) != nil || int(s.Uid) != os.Getuid() {
			continue
		}
		tasks, _ := os.ReadDir(folder + "/task")
		n += len(tasks)
	}
	return n
}

// allowed are the paths that Landlock allows.
func allowed(m means, b box, dir string) []path {
	var paths []path
	for _, name := range devices {
		if _, err := os.Stat(name); err == nil {
			paths = append(paths, path{name, onDevice, false})
		}
	}
	if m.Tier == Namespaces {
		return append(paths, path{"/", mayRead, true},
			path{home, handledFS(m.Landlock) &^ (unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV), true})
	}
	paths = append(paths, path{dir, mayRead &^ unix.LANDLOCK_ACCESS_FS_EXECUTE, true})
	for _, name := range b.Read {
		if info, err := os.Stat(name); err == nil {
			paths = append(paths, path{name, mayRead, info.IsDir()})
		}
	}
	return paths
}

// mounts assembles a file system from read-only paths and an empty writable folder.
func mounts(p *plan, b box, l Limits) {
	list := &p.steps
	p.do(list, "keeping mounts to the namespace", unix.SYS_MOUNT, 0, "/", 0, unix.MS_REC|unix.MS_PRIVATE, 0)
	trees := map[string][]*uintptr{}
	type placed struct {
		name   string
		folder bool
		device bool
	}
	var all []placed
	links := [][2]string{}
	for _, name := range covering(b.Read) {
		info, err := os.Lstat(name)
		switch {
		case err != nil:
		case info.Mode()&os.ModeSymlink != 0:
			if to, err := os.Readlink(name); err == nil {
				links = append(links, [2]string{name, to})
			}
		default:
			all = append(all, placed{name, info.IsDir(), false})
		}
	}
	for _, name := range devices {
		if _, err := os.Stat(name); err == nil {
			all = append(all, placed{name, false, true})
		}
	}
	opened := make([]*step, len(all))
	for i, one := range all {
		opened[i] = p.do(list, "taking "+one.name, unix.SYS_OPEN_TREE, unix.AT_FDCWD, one.name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	}
	p.do(list, "mounting a file system in memory", unix.SYS_MOUNT, "tmpfs", stage, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=4m,nr_inodes=4096,mode=0755")
	p.do(list, "entering it", unix.SYS_CHDIR, stage)
	made := map[string]bool{".": true}
	for _, folder := range []string{"dev", home[1:], "etc"} {
		makeFolder(p, folder, made)
	}
	// Before the read-only paths, some of which may be below it.
	options := "size=" + decimal(l.Disk) + ",nr_inodes=" + decimal(int64(l.Files)) + ",mode=1777"
	p.do(list, "mounting the folder to write to", unix.SYS_MOUNT, "tmpfs", home[1:], "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options)
	for i, one := range all {
		at := one.name[1:]
		if one.folder {
			makeFolder(p, at, made)
		} else {
			makeFolder(p, filepath.Dir(at), made)
			p.do(list, "making "+one.name, unix.SYS_MKNODAT, unix.AT_FDCWD, at, unix.S_IFREG|0o644, 0).may = unix.EEXIST
		}
		attributes := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_RDONLY)
		if one.device {
			attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_RDONLY // fixes its times, but writing to it still works
		}
		set := p.do(list, "making "+one.name+" read-only", unix.SYS_MOUNT_SETATTR, 0, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, mountAttributes(attributes), 32)
		move := p.do(list, "mounting "+one.name, unix.SYS_MOVE_MOUNT, 0, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
		trees[one.name] = []*uintptr{&set.args[0], &move.args[0]}
		opened[i].into = trees[one.name]
	}
	for _, link := range links {
		makeFolder(p, filepath.Dir(link[0][1:]), made)
		p.do(list, "linking "+link[0], unix.SYS_SYMLINKAT, link[1], unix.AT_FDCWD, link[0][1:]).may = unix.EEXIST
	}
	for _, f := range b.Files {
		created := p.do(list, "writing "+f.Name, unix.SYS_OPENAT, unix.AT_FDCWD, home[1:]+"/"+f.Name, unix.O_CREAT|unix.O_WRONLY|unix.O_EXCL, 0o644)
		write := p.do(list, "writing "+f.Name, unix.SYS_WRITE, 0, append(slices.Clip(f.Data), 0), len(f.Data))
		write.least = uintptr(len(f.Data))
		closed := p.do(list, "writing "+f.Name, unix.SYS_CLOSE, 0)
		created.into = []*uintptr{&write.args[0], &closed.args[0]}
	}
	p.do(list, "changing the root", unix.SYS_PIVOT_ROOT, ".", ".")
	p.do(list, "leaving the old root", unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
	p.do(list, "entering the new root", unix.SYS_CHDIR, "/")
	p.do(list, "making the root read-only", unix.SYS_MOUNT_SETATTR, unix.AT_FDCWD, "/", 0,
		mountAttributes(unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC), 32)
	p.do(list, "naming the host", unix.SYS_SETHOSTNAME, hostname, len(hostname))
}

// mountAttributes encodes the argument of mount_setattr.
func mountAttributes(set uint64) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, set), make([]byte, 24)...)
}

func makeFolder(p *plan, name string, made map[string]bool) {
	if made[name] {
		return
	}
	makeFolder(p, filepath.Dir(name), made)
	made[name] = true
	p.do(&p.steps, "making /"+name, unix.SYS_MKDIRAT, unix.AT_FDCWD, name, 0o755).may = unix.EEXIST
}

// covering returns the paths that are not below another path, sorted.
func covering(paths []string) []string {
	sorted := slices.Compact(slices.Sorted(slices.Values(paths)))
	var kept []string
	for _, name := range sorted {
		if _, err := os.Lstat(name); err != nil || slices.ContainsFunc(kept, func(above string) bool {
			folder, err := os.Lstat(above)
			return err == nil && folder.IsDir() && strings.HasPrefix(name, above+"/")
		}) {
			continue
		}
		kept = append(kept, filepath.Clean(name))
	}
	return kept
}
