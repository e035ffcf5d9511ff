// Package run keeps what a run leaves behind: its folder, locked against other processes, the stage of training that
// writes logs, metrics and checkpoints there, and all that a checkpoint holds. How a checkpoint is written is changed
// here and nowhere else.
package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch"
)

// runFile is the file that makes a folder recognisable as a run of ours.
const runFile = "run.json"

// program is the value of run.json's "program" field.
const program = "rltrain"

// Status says where a run stands.
type Status string

// The states of a run. A process that was killed leaves StatusRunning behind.
const (
	StatusRunning  Status = "running"
	StatusFinished Status = "finished"
	StatusStopped  Status = "stopped" // by the user, after saving
	StatusFailed   Status = "failed"
)

// Info is what is known about a stage of training before its first step. All
// of it is written to run.json.
type Info struct {
	Task     string            `json:"task"`            // "intent"
	Stage    string            `json:"stage"`           // "supervised" or "rl"
	Command  []string          `json:"command"`         // the arguments as typed
	Versions map[string]string `json:"versions"`        // "rltrain", "go", "libtorch"
	Device   string            `json:"device"`          // "cpu", "cuda:0"
	DType    string            `json:"dtype,omitempty"` // of frozen weights where the device chose it, such as "bf16"
	Threads  int               `json:"threads"`
	CPU      string            `json:"cpu"` // processor type, e.g. the model name
	Kernels  torch.Kernels     `json:"kernels"`
	Seed     uint64            `json:"seed"`
	// Environment holds the variables that tell other programs about the run, WANDB_PROJECT and its kin.
	Environment map[string]string `json:"environment,omitempty"`
	// Started is when the process that begins, or goes on with, the run did so.
	Started time.Time `json:"started"`
}

// Record is the content of run.json.
type Record struct {
	Program string `json:"program"`
	Info
	PID    int    `json:"pid"` // of the process that wrote it last
	Status Status `json:"status"`
	// Ending says in words how the run ended: empty while it runs.
	Ending string     `json:"ending,omitempty"`
	Ended  *time.Time `json:"ended,omitempty"`
	// Resumed holds the start of every process that went on with the run.
	Resumed []time.Time `json:"resumed,omitempty"`
	// Inexact lists why a resumed run may differ from one that never stopped.
	Inexact []string `json:"inexact,omitempty"`
	// PeakMemory is the most memory, in bytes, that a process of the run held; 0 where the system does not tell.
	PeakMemory int64 `json:"peak_memory_bytes,omitempty"`
	// Files has the SHA-256 sums of what a finished run leaves to use: see sealed.
	Files map[string]string `json:"files,omitempty"`
}

// Run is an open run folder, locked against other processes until Finish.
type Run struct {
	home     string // where the run is to lie
	dir      string // where it lies now: home, or beside it until it has something worth keeping
	keepRuns int
	record   Record
	lock     *dirLock
}

// Create makes dir the folder of a new run and locks it. Where a run that is
// worth keeping lies in dir, the new one lies in dir+".new" until [Run.Settle];
// the old one then moves to dir+".1", those before to ".2" and so on, of which
// keepRuns stay. Anything else in the way is an error that names it and touches
// nothing.
func Create(dir string, keepRuns int, info Info) (*Run, error) {
	home := resolve(dir)
	at, err := placeFor(home)
	if err != nil {
		return nil, fmt.Errorf("output folder %s: %w", home, err)
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return nil, fmt.Errorf("output folder: %w; choose a folder that can be written", err)
	}
	lock, err := lockDir(at)
	if err != nil {
		return nil, fmt.Errorf("output folder %s: %w", home, err)
	}
	// Between the look and the lock another process may have made its run here.
	if _, err := os.Lstat(filepath.Join(at, runFile)); err == nil {
		lock.release()
		return nil, fmt.Errorf("output folder %s: another run has just started in it; choose another folder", home)
	}
	r := &Run{home: home, dir: at, keepRuns: keepRuns, lock: lock,
		record: Record{Program: program, Info: info, PID: os.Getpid(), Status: StatusRunning}}
	if err := r.write(); err != nil {
		lock.release()
		return nil, err
	}
	return r, nil
}

// Resume opens and locks the folder of a run that did not finish, or with finished of one that did. Call
// [Run.Continue] before the first step.
func Resume(dir string, finished bool) (*Run, error) {
	dir = resolve(dir)
	if err := finishMove(dir); err != nil {
		return nil, err
	}
	if _, err := ReadRun(dir); err != nil {
		return nil, err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("output folder %s: %w", dir, err)
	}
	// The owner of the lock may have changed the record since the first look.
	record, err := ReadRun(dir)
	if err == nil && record.Status == StatusFinished && !finished {
		err = fmt.Errorf("the run in %s is finished: there is nothing to resume", dir)
	}
	if err != nil {
		lock.release()
		return nil, err
	}
	return &Run{home: dir, dir: dir, record: record, lock: lock}, nil
}

// Continue marks a resumed run as running in this process. now describes this
// process; what differs from the process that began the run, and so keeps the
// rest from being byte-exact, is returned in words and recorded as inexact.
// changed are such differences that are known already.
func (r *Run) Continue(now Info, changed []string) (differences []string, err error) {
	differences = slices.Clone(changed)
	was := r.record.Info
	differ := func(what string, a, b any) {
		if a != b {
			differences = append(differences, fmt.Sprintf("%s was %v, is now %v", what, a, b))
		}
	}
	names := make([]string, 0, len(was.Versions)+len(now.Versions))
	for name := range was.Versions {
		names = append(names, name)
	}
	for name := range now.Versions {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		differ("version of "+name, orNone(was.Versions[name]), orNone(now.Versions[name]))
	}
	differ("device", was.Device, now.Device)
	differ("dtype of frozen weights", orNone(was.DType), orNone(now.DType))
	differ("threads", was.Threads, now.Threads)
	differ("cpu", was.CPU, now.CPU)
	differ("kernels", orNone(was.Kernels.Set), orNone(now.Kernels.Set))
	differ("seed", was.Seed, now.Seed)

	for _, d := range differences {
		r.addInexact(d)
	}
	r.record.PID = os.Getpid()
	r.record.Status, r.record.Ending, r.record.Ended, r.record.Files = StatusRunning, "", nil, nil
	r.record.Resumed = append(r.record.Resumed, now.Started)
	return differences, r.write()
}

func (r *Run) addInexact(reason string) bool {
	if slices.Contains(r.record.Inexact, reason) {
		return false
	}
	r.record.Inexact = append(r.record.Inexact, reason)
	return true
}

// Finish records how the run ended, in one word and in words, and gives the
// folder back. The run must not be used afterwards.
func (r *Run) Finish(status Status, ending string, at time.Time) error {
	if r.lock == nil {
		return fmt.Errorf("run %s: finished twice", r.dir)
	}
	r.record.Status, r.record.Ending, r.record.Ended = status, ending, &at
	r.record.PeakMemory = max(r.record.PeakMemory, PeakMemory())
	var err error
	if status == StatusFinished {
		r.record.Files, err = sums(r.dir)
	}
	err = errors.Join(err, r.write())
	r.lock.release()
	r.lock = nil
	return err
}

// Dir is where the run's folder lies now.
func (r *Run) Dir() string { return r.dir }

// Home is where it lies once it has something worth keeping.
func (r *Run) Home() string { return r.home }

// Record is what run.json says now.
func (r *Run) Record() Record { return r.record }

// File is the path of a file in one of the run's folders ("logs", "plots",
// "results"), which is made if it is not there yet.
func (r *Run) File(folder, name string) (string, error) {
	dir := filepath.Join(r.dir, folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("run folder: %w", err)
	}
	return filepath.Join(dir, name), nil
}

func (r *Run) write() error { return files.SaveJSON(filepath.Join(r.dir, runFile), r.record) }

// ReadRun reads dir's run.json. The error wraps [fs.ErrNotExist] where there
// is none.
func ReadRun(dir string) (Record, error) {
	var record Record
	err := files.LoadJSON(filepath.Join(dir, runFile), &record)
	if errors.Is(err, fs.ErrNotExist) {
		return record, fmt.Errorf("%s is not the folder of a run: %w", dir, err)
	}
	return record, err
}

// About describes the run for its report.
func (r Record) About() report.About {
	facts := []report.Setting{
		{Name: "status", Value: string(r.Status)},
		{Name: "command", Value: strings.Join(r.Command, " ")},
		{Name: "started", Value: r.Started.UTC().Format(time.RFC3339)},
		{Name: "device", Value: fmt.Sprintf("%s, %s, %s", r.Device, report.Plural(r.Threads, "thread"), r.CPU)},
		{Name: "seed", Value: fmt.Sprint(r.Seed)},
	}
	if r.Ending != "" {
		facts[0].Value += ": " + r.Ending
	}
	if r.Ended != nil {
		facts = slices.Insert(facts, 3, report.Setting{Name: "took", Value: report.Duration(r.Ended.Sub(r.Started))})
	}
	if r.PeakMemory > 0 {
		facts = append(facts, report.Setting{Name: "memory", Value: fmt.Sprintf("%.0f MiB at most", float64(r.PeakMemory)/(1<<20))})
	}
	if n := len(r.Resumed); n > 0 {
		facts = append(facts, report.Setting{Name: "resumed", Value: report.Plural(n, "time")})
	}
	names := make([]string, 0, len(r.Versions))
	for name := range r.Versions {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		facts = append(facts, report.Setting{Name: name, Value: r.Versions[name]})
	}
	return report.About{Title: r.Task + ": " + r.Stage, Stage: r.Stage, Facts: facts, Inexact: r.Inexact}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
