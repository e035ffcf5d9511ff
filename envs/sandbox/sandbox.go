// Package sandbox runs untrusted programs, such as those that a language model generates.
//
// A helper starts each program in a new process. The helper is this program under another name, with one thread and no
// other state; it drops its rights in an irreversible order and executes the program. The isolation depends on the machine.
// Each kind is tested before use, and a weaker kind never silently replaces a stronger one:
//
//   - namespaces: private processes, mounts, network, users and host name. The program sees an in-memory file system with
//     the read-only files of its language and an empty folder /tmp, without /proc and /sys. All of its processes end with it.
//   - landlock: without namespaces, as in many containers. The program reads only the files of its language, writes nothing
//     and starts no process.
//   - unsafe: resource limits only, and only if the user asks for it.
//
// In the first two, the kernel also blocks system calls that computations do not need (seccomp), including the network.
// Limits apply to time, memory, output, files and processes.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Tier is a kind of isolation.
type Tier string

// Kinds of isolation, strongest first.
const (
	Namespaces Tier = "namespaces"
	Landlock   Tier = "landlock"
	Unsafe     Tier = "unsafe"
)

// Limits bound a program's resources.
type Limits struct {
	Wall         time.Duration // from its start
	CPU          time.Duration // processor time of all processes together, in full seconds; 0 = Wall, for each process
	Memory       int64         // bytes, for all processes together
	AddressSpace int64         // bytes per process; 0 = no limit
	Output       int           // bytes for each of its two outputs
	File         int64         // bytes per file
	Disk         int64         // bytes of all files
	Files        int
	Processes    int // and threads
}

// seconds is the limit of processor time.
func (l Limits) seconds() float64 { return max(1, math.Ceil(l.CPU.Seconds())) }

// Usual returns limits for short programs.
func Usual() Limits {
	return Limits{Wall: 10 * time.Second, Memory: 1 << 30, AddressSpace: 3 << 29, Output: 64 << 10, File: 16 << 20, Disk: 64 << 20, Files: 2048, Processes: 32}
}

// File is a file in a program's folder.
type File struct {
	Name string
	Data []byte
}

// Program is a program to run.
type Program struct {
	Language *Language
	Argv     []string // after the interpreter; {} is replaced by the folder of Files
	Env      []string // in addition to PATH, HOME and LANG
	Files    []File
	Stdin    []byte
}

// Status is how a program ended.
type Status string

// Statuses of programs.
const (
	OK           Status = "ok"            // exit code 0
	Failed       Status = "error"         // another exit code
	Signal       Status = "signal"        // killed by a signal
	Timeout      Status = "timeout"       // time limit exceeded
	Memory       Status = "memory"        // memory limit exceeded
	Output       Status = "output"        // output limit exceeded
	SandboxError Status = "sandbox-error" // the program did not run, or the sandbox failed: nothing is known about the program
)

// Outcome is how a program ended.
type Outcome struct {
	Status   Status  `json:"status"`
	ExitCode int     `json:"exit_code"`
	Signal   int     `json:"signal,omitempty"`
	Stdout   string  `json:"stdout"`
	Stderr   string  `json:"stderr"`
	CPU      float64 `json:"cpu_s"`   // seconds of all processes
	Peak     float64 `json:"peak_mb"` // memory of the largest process
	Tier     Tier    `json:"tier"`
	Error    string  `json:"error,omitempty"` // of SandboxError
}

// Sandbox runs programs with one kind of isolation. It is safe for concurrent use.
type Sandbox struct {
	means means
	slots chan struct{} // limit the programs that run at the same time
	idle  chan *helper  // at most as many as slots

	folders folders
}

// Finding is the test result for a kind of isolation.
type Finding struct {
	Tier Tier
	How  string // what it consists of here
	Err  error  // why it cannot be used; nil if it can
}

// candidate is a kind of isolation to test.
type candidate struct {
	means
	works func() error // tests it once
}

// candidates are the kinds possible on this machine, strongest first.
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

// Findings returns the test results of all kinds.
func Findings() []Finding {
	var found []Finding
	for _, c := range candidates() {
		found = append(found, Finding{c.Tier, c.String(), c.works()})
	}
	return found
}

// Tiers returns the kinds that work here, strongest first. The last, unsafe, is used only on request.
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
		parts = append(parts, "unprivileged user namespaces")
	case m.Tier == Namespaces:
		parts = append(parts, "namespaces (root)")
	}
	if m.IDs {
		parts = append(parts, "a dedicated user")
	}
	if m.Landlock > 0 && m.Tier != Unsafe {
		parts = append(parts, fmt.Sprintf("Landlock version %d", m.Landlock))
	}
	if m.Seccomp {
		parts = append(parts, "seccomp")
	}
	return strings.Join(append(parts, "limits"), ", ")
}

// Open returns a sandbox with the strongest isolation that works here; unsafe allows the weakest.
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
	return nil, fmt.Errorf("no sandbox works here (%s); run rltrain doctor for what would help, or pass --unsafe-exec to run programs with resource limits only", strings.Join(why, "; "))
}

// In returns a sandbox with the given isolation.
func In(t Tier) (*Sandbox, error) {
	err := fmt.Errorf("unknown tier %q; choose %s, %s or %s", t, Namespaces, Landlock, Unsafe)
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

// helper returns an idle helper or a new one. anew forces a new one and stops an idle one.
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

// Close stops the helpers. They also end with this process, but then their resource use is not counted.
func (s *Sandbox) Close() error {
	defer s.folders.remove()
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

// Tier is the kind of isolation.
func (s *Sandbox) Tier() Tier { return s.means.Tier }

// How describes what the isolation consists of here.
func (s *Sandbox) How() string { return s.means.String() }

// tries is the number of attempts if the sandbox fails, with a delay between them.
const tries = 3

// Run runs one program, or two connected ones: what one writes to its file 4, the other reads from its file 3. The first of
// two is killed when the second ends. Each Outcome says how its program ended, including a sandbox failure after three
// attempts. Run returns only errors of ctx.
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
