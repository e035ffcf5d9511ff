package program

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guardName is the name of a guard: this program started anew, which runs one external program and ends with it, or with the
// process that started it. Either way it ends all processes that the program has started, also those in other sessions.
const guardName = "rltrain-program"

// controlFile is an open file of the guard that ends when its parent has gone or wants the program to end.
const controlFile = 3

func init() {
	if len(os.Args) > 1 && os.Args[0] == guardName {
		runtime.LockOSThread() // the program dies with the thread that started it
		os.Exit(guard(os.Args[1:]))
	}
}

// guarded is the command that runs a program under a guard, and what ends both when it is closed.
func guarded(words, env []string) (*exec.Cmd, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	command := &exec.Cmd{Path: "/proc/self/exe", Args: append([]string{guardName}, words...), Env: env, ExtraFiles: []*os.File{r}}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C does not reach it
	return command, w, nil
}

// guard runs a program and returns its exit code. A program that was killed by a signal ends the guard by the same.
func guard(words []string) int {
	unix.CloseOnExec(controlFile)
	// Orphans become children of the guard, so that it finds them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "guarding a program:", err)
		return 1
	}
	signal.Ignore(unix.SIGPIPE)
	command := exec.Command(words[0], words[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 127
	}
	_ = os.Stdin.Close() // the program's; the output stays open until its exit status is known
	var last sync.Mutex  // whoever has it ends the guard
	go func() {
		_, _ = io.Copy(io.Discard, os.NewFile(controlFile, "control"))
		last.Lock()
		sweep()
		os.Exit(int(128 + unix.SIGKILL))
	}()
	err := command.Wait()
	last.Lock()
	sweep()
	ended := (*exec.ExitError)(nil)
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &ended):
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if status, ok := ended.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		signal.Reset(status.Signal())
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
		_ = unix.Kill(os.Getpid(), status.Signal())
		time.Sleep(time.Second) // until it arrives
	}
	return ended.ExitCode()
}

// sweep kills all descendants until there are none.
func sweep() {
	for range 1000 {
		left := children(os.Getpid())
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // its children become ours
		}
		time.Sleep(time.Millisecond)
	}
}

// children are the processes that a process has started, by all of its threads.
func children(pid int) (all []int) {
	folder := "/proc/" + strconv.Itoa(pid) + "/task/"
	tasks, _ := os.ReadDir(folder)
	for _, task := range tasks {
		text, _ := os.ReadFile(folder + task.Name() + "/children")
		for _, word := range bytes.Fields(text) {
			if child, err := strconv.Atoi(string(word)); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}
