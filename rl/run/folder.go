package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"rltrain/internal/files"
	"rltrain/rl/report"
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
	Task     string            `json:"task"`     // "intent"
	Stage    string            `json:"stage"`    // "supervised" or "rl"
	Command  []string          `json:"command"`  // the arguments as typed
	Versions map[string]string `json:"versions"` // "rltrain", "go", "libtorch"
	Device   string            `json:"device"`   // "cpu", "cuda:0"
	Threads  int               `json:"threads"`
	CPU      string            `json:"cpu"` // processor type, e.g. the model name
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
}

// Run is an open run folder, locked against other processes until Finish.
type Run struct {
	dir    string
	record Record
	lock   *dirLock
}

// Create makes dir the folder of a new run and locks it. A run that is already
// there moves to dir+".previous", replacing an older one; anything else in the
// way is an error that names it and touches nothing.
func Create(dir string, info Info) (*Run, error) {
	dir = resolve(dir)
	if err := moveAside(dir); err != nil {
		return nil, fmt.Errorf("output folder %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("output folder: %w; choose a folder that can be written", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("output folder %s: %w", dir, err)
	}
	// Between the move and the lock another process may have made its run here.
	if _, err := os.Lstat(filepath.Join(dir, runFile)); err == nil {
		lock.release()
		return nil, fmt.Errorf("output folder %s: another run has just started in it; choose another folder", dir)
	}
	r := &Run{dir: dir, lock: lock, record: Record{Program: program, Info: info, PID: os.Getpid(), Status: StatusRunning}}
	if err := r.write(); err != nil {
		lock.release()
		return nil, err
	}
	return r, nil
}

// Resume opens and locks the folder of a run that did not finish. Call
// [Run.Continue] before the first step.
func Resume(dir string) (*Run, error) {
	dir = resolve(dir)
	if _, err := ReadRun(dir); err != nil {
		return nil, err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("output folder %s: %w", dir, err)
	}
	// The owner of the lock may have changed the record since the first look.
	record, err := ReadRun(dir)
	if err == nil && record.Status == StatusFinished {
		err = fmt.Errorf("the run in %s is finished: there is nothing to resume", dir)
	}
	if err != nil {
		lock.release()
		return nil, err
	}
	return &Run{dir: dir, record: record, lock: lock}, nil
}

// Continue marks a resumed run as running in this process. now describes this
// process; what differs from the process that began the run, and so keeps the
// rest from being byte-exact, is returned in words and recorded as inexact.
func (r *Run) Continue(now Info) (differences []string, err error) {
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
	differ("threads", was.Threads, now.Threads)
	differ("cpu", was.CPU, now.CPU)
	differ("seed", was.Seed, now.Seed)

	for _, d := range differences {
		r.addInexact(d)
	}
	r.record.PID = os.Getpid()
	r.record.Status, r.record.Ending, r.record.Ended = StatusRunning, "", nil
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
	err := r.write()
	r.lock.release()
	r.lock = nil
	return err
}

// Dir is the run's folder.
func (r *Run) Dir() string { return r.dir }

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
	return report.About{Title: r.Task + ": " + r.Stage, Facts: facts, Inexact: r.Inexact}
}

// resolve follows symbolic links, so that a folder linked to a bigger disk
// stays there when a run is moved aside.
func resolve(dir string) string {
	dir = filepath.Clean(dir)
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}

// moveAside frees dir for a new run.
func moveAside(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !isRun(dir) {
		// A process killed while it created its run leaves no more than these.
		foreign := slices.DeleteFunc(entryNames(entries), func(name string) bool {
			return name == lockFile || strings.HasPrefix(name, "."+runFile)
		})
		if len(foreign) > 0 {
			return fmt.Errorf("holds %s and no run of %s; choose another folder or empty it", someOf(foreign), program)
		}
		return nil
	}
	previous := dir + ".previous"
	if kept, err := os.ReadDir(previous); err == nil && len(kept) > 0 && !isRun(previous) {
		return fmt.Errorf("%s, where the run in it would move, holds %s and no run of %s; move it away",
			previous, someOf(entryNames(kept)), program)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer lock.release()
	if err := removeRun(previous); err != nil {
		return fmt.Errorf("removing the run before the previous one: %w", err)
	}
	if err := os.Rename(dir, previous); err != nil {
		return fmt.Errorf("moving the previous run aside: %w", err)
	}
	lock.moved(previous)
	return nil
}

// isRun tells whether dir was written by this program, in any of its versions.
func isRun(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, runFile))
	var mark struct {
		Program string `json:"program"`
	}
	return err == nil && json.Unmarshal(data, &mark) == nil && mark.Program == program
}

// removeRun deletes the folder with run.json last: a deletion cut short leaves
// a folder that can still be recognised.
func removeRun(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == runFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

func entryNames(entries []fs.DirEntry) []string {
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

func someOf(names []string) string {
	const shown = 3
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
