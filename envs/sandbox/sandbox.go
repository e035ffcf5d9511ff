// Package sandbox runs programs that nobody has read, such as a language model writes.
//
// A program runs in a process of its own, which is started by a helper: this program again, under another name, with one
// thread and nothing in it. The helper gives up rights in an order in which none can be had back, and becomes the
// program. What is kept from it depends on the machine; each way is tried before it is used, and none is used silently
// in place of a better one:
//
//   - namespaces: its own processes, mounts, network, users and names of them. It sees a file system in memory with
//     what its language needs, read-only, and an empty folder /tmp. There is no /proc and no /sys. When it ends all that
//     it has started ends.
//   - landlock: without namespaces, as in many containers. It reads what its language needs and nothing else, writes
//     nowhere, and has no second process.
//   - unsafe: limits alone, and only where the user asks for it.
//
// In the first two the kernel also refuses it the system calls of which no program that computes has need (seccomp),
// the network among them. Limits hold for time, memory, output, files and processes.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Tier is a way to keep a program in.
type Tier string

// The tiers, the strongest first.
const (
	Namespaces Tier = "namespaces"
	Landlock   Tier = "landlock"
	Unsafe     Tier = "unsafe"
)

// Limits bound what a program uses.
type Limits struct {
	Wall         time.Duration // from its start
	CPU          time.Duration // processor time of each process, in whole seconds; 0 = as Wall
	Memory       int64         // bytes, of all its processes together
	AddressSpace int64         // bytes, of each process; 0 = no limit
	Output       int           // bytes that it may write to each of its two outputs
	File         int64         // bytes of a file
	Disk         int64         // bytes of all files
	Files        int
	Processes    int // and threads
}

// Usual are limits for short programs.
func Usual() Limits {
	return Limits{Wall: 10 * time.Second, Memory: 1 << 30, AddressSpace: 3 << 29, Output: 64 << 10, File: 16 << 20, Disk: 64 << 20, Files: 2048, Processes: 32}
}

// File is a file of a program's folder.
type File struct {
	Name string
	Data []byte
}

// Program is what is to be run.
type Program struct {
	Language *Language
	Argv     []string // after the interpreter; {} stands for the folder of Files
	Env      []string // beside PATH, HOME and LANG
	Files    []File
	Stdin    []byte
}

// Status is how a program ended, in one word.
type Status string

// Status of programs.
const (
	OK           Status = "ok"            // exit code 0
	Failed       Status = "error"         // another exit code
	Signal       Status = "signal"        // ended by a signal
	Timeout      Status = "timeout"       // it took too long
	Memory       Status = "memory"        // it wanted too much memory
	Output       Status = "output"        // it wrote too much
	SandboxError Status = "sandbox-error" // it was not run, or the sandbox failed: nothing is known of the program
)

// Outcome is how a program ended.
type Outcome struct {
	Status   Status  `json:"status"`
	ExitCode int     `json:"exit_code"`
	Signal   int     `json:"signal,omitempty"`
	Stdout   string  `json:"stdout"`
	Stderr   string  `json:"stderr"`
	CPU      float64 `json:"cpu_s"`   // seconds of all its processes
	Peak     float64 `json:"peak_mb"` // memory of the largest process
	Tier     Tier    `json:"tier"`
	Error    string  `json:"error,omitempty"` // of SandboxError
}

// Sandbox runs programs in one tier. Several goroutines may use it.
type Sandbox struct {
	means means
	slots chan struct{} // of what runs at the same time
	idle  chan *helper  // as many as there are slots at most
}

// Finding is what was found of a tier.
type Finding struct {
	Tier Tier
	How  string // what it is made of here
	Err  error  // why it cannot be used; nil where it can
}

// candidate is a way to try.
type candidate struct {
	means
	works func() error // tries it once
}

// candidates are the ways of this machine, the strongest first.
var candidates = sync.OnceValue(func() []candidate {
	var all []candidate
	add := func(m means) { all = append(all, candidate{m, sync.OnceValue(m.try)}) }
	version, ids := landlockVersion(), os.Geteuid() == 0 && mayChangeUser()
	if os.Geteuid() == 0 {
		add(means{Tier: Namespaces, IDs: true, Landlock: version, Seccomp: true})
	}
	add(means{Tier: Namespaces, User: true, Landlock: version, Seccomp: true})
	add(means{Tier: Landlock, IDs: ids, Landlock: version, Seccomp: true})
	add(means{Tier: Unsafe, IDs: ids, Seccomp: true})
	add(means{Tier: Unsafe, IDs: ids})
	return all
})

// Findings are what was found of all tiers.
func Findings() []Finding {
	var found []Finding
	for _, c := range candidates() {
		found = append(found, Finding{c.Tier, c.String(), c.works()})
	}
	return found
}

// Tiers are those that can be used here, the strongest first; the last, unsafe, only where it is asked for.
func Tiers() []Tier {
	var tiers []Tier
	for _, c := range candidates() {
		if c.works() == nil && !slices.Contains(tiers, c.Tier) {
			tiers = append(tiers, c.Tier)
		}
	}
	return tiers
}

func (m means) String() string {
	var parts []string
	switch {
	case m.Tier == Namespaces && m.User:
		parts = append(parts, "namespaces of an unprivileged user")
	case m.Tier == Namespaces:
		parts = append(parts, "namespaces made by root")
	}
	if m.IDs {
		parts = append(parts, "a user of its own")
	}
	if m.Landlock > 0 && m.Tier != Unsafe {
		parts = append(parts, fmt.Sprintf("Landlock version %d", m.Landlock))
	}
	if m.Seccomp {
		parts = append(parts, "seccomp")
	}
	return strings.Join(append(parts, "limits"), ", ")
}

// Open is the sandbox in the strongest tier that works here; unsafe allows the weakest.
func Open(unsafe bool) (*Sandbox, error) {
	var why []string
	for _, c := range candidates() {
		if c.Tier == Unsafe && !unsafe {
			continue
		}
		err := c.works()
		if err == nil {
			return newSandbox(c.means), nil
		}
		why = append(why, fmt.Sprintf("%s: %v", c.Tier, err))
	}
	return nil, fmt.Errorf("no sandbox works here (%s); `rltrain doctor` says what would help, and --unsafe-exec runs programs with limits alone", strings.Join(why, "; "))
}

// In is the sandbox in one tier.
func In(t Tier) (*Sandbox, error) {
	err := fmt.Errorf("tier %q is unknown: choose %s, %s or %s", t, Namespaces, Landlock, Unsafe)
	for _, c := range candidates() {
		if c.Tier != t {
			continue
		}
		if err = c.works(); err == nil {
			return newSandbox(c.means), nil
		}
		err = fmt.Errorf("tier %s does not work here: %w", t, err)
	}
	return nil, err
}

func newSandbox(m means) *Sandbox {
	n := runtime.GOMAXPROCS(0)
	return &Sandbox{means: m, slots: make(chan struct{}, n), idle: make(chan *helper, n)}
}

// helper is one that waits for a job, or a new one; anew it is a new one in any case, and one that waits is ended.
func (s *Sandbox) helper(anew bool) (*helper, error) {
	select {
	case h := <-s.idle:
		if !anew {
			return h, nil
		}
		_ = h.end() // it may be gone already
	default:
	}
	return startHelper()
}

// Close ends the helpers. They end with this process too, but then what they used counts nowhere.
func (s *Sandbox) Close() error {
	var all error
	for {
		select {
		case h := <-s.idle:
			all = errors.Join(all, h.end())
		default:
			return all
		}
	}
}

// Tier is how programs are kept in.
func (s *Sandbox) Tier() Tier { return s.means.Tier }

// How is what the tier is made of here.
func (s *Sandbox) How() string { return s.means.String() }

// tries of a run that the sandbox fails at, with a wait before each but the first.
const tries = 3

// Run runs one program, or two that are connected: what one writes to its file 4 the other reads from its file 3. Of two
// the first is ended when the second has ended. An outcome says how each ended, a failure of the sandbox after three
// tries included; the error is that of ctx.
func (s *Sandbox) Run(ctx context.Context, l Limits, programs ...Program) ([]Outcome, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for try := 1; ; try++ {
		out, err := s.once(ctx, l, programs, try > 1)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		failed := err != nil
		for _, o := range out {
			failed = failed || o.Status == SandboxError
		}
		if err != nil {
			out = make([]Outcome, len(programs))
			for i := range out {
				out[i] = Outcome{Status: SandboxError, Error: err.Error(), Tier: s.means.Tier}
			}
		}
		if !failed || try == tries {
			return out, nil
		}
		select {
		case <-time.After(time.Duration(try) * 50 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
