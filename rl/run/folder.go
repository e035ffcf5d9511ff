// Package run manages run folders: locks, run.json, logs, metrics, trackers and checkpoints. All checkpoint formats are
// defined here.
package run

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch"
)

// runFile marks a folder as a run of this program.
const runFile = "run.json"

// program is the value of run.json's "program" field.
const program = "rltrain"

// Status is the state of a run.
type Status string

// The states of a run. A process that was killed leaves StatusRunning behind.
const (
	StatusRunning  Status = "running"
	StatusFinished Status = "finished"
	StatusStopped  Status = "stopped" // by the user, after saving
	StatusFailed   Status = "failed"
)

// Info describes a training stage before its first step. run.json holds all of it.
type Info struct {
	Task     string            `json:"task"`            // "intent"
	Stage    string            `json:"stage"`           // "supervised" or "rl"
	Command  []string          `json:"command"`         // the arguments as typed
	Versions map[string]string `json:"versions"`        // "rltrain", "go", "libtorch"
	Device   string            `json:"device"`          // "cpu", "cuda:0"
	DType    string            `json:"dtype,omitempty"` // of frozen weights if the device decides it, such as "bf16"
	Threads  int               `json:"threads"`
	CPU      string            `json:"cpu"` // model name of the processor
	Kernels  torch.Kernels     `json:"kernels"`
	Seed     uint64            `json:"seed"`
	// TemplateDate is the day that chat templates print, such as "2026-01-31".
	TemplateDate string `json:"template_date,omitempty"`
	// Config is the text of config.yaml.
	Config string `json:"config,omitempty"`
	// Inputs has sums of what the settings name.
	Inputs Inputs `json:"inputs,omitempty"`
	// Environment holds variables for trackers, such as WANDB_PROJECT.
	Environment map[string]string `json:"environment,omitempty"`
	// Started is when this process started or resumed the run.
	Started time.Time `json:"started"`
}

// Record is the content of run.json.
type Record struct {
	Program string `json:"program"`
	Info
	PID    int    `json:"pid"` // of the last writer
	Status Status `json:"status"`
	// Ending describes how the run ended; empty while it runs.
	Ending string     `json:"ending,omitempty"`
	Ended  *time.Time `json:"ended,omitempty"`
	// Resumed has the start time of every process that resumed the run.
	Resumed []time.Time `json:"resumed,omitempty"`
	// Inexact lists why a resumed run may differ from an uninterrupted one.
	Inexact []string `json:"inexact,omitempty"`
	// Seconds is how long each phase took, such as "rollout".
	Seconds map[string]float64 `json:"seconds,omitempty"`
	// PeakMemory is the peak resident memory of the run's processes in bytes; 0 if unknown.
	PeakMemory int64 `json:"peak_memory_bytes,omitempty"`
	// Files has the SHA-256 sums of the output files of a finished run; see sealed.
	Files map[string]string `json:"files,omitempty"`
}

// Run is an open run folder, locked against other processes until Finish.
type Run struct {
	home     string // final folder
	dir      string // current folder: home, or home+newSuffix before Settle
	keepRuns int
	record   Record
	lock     *dirLock
}

// Create creates and locks the folder of a new run. If dir holds a run worth keeping, the new run uses dir+".new" until
// [Run.Settle]. The old run then moves to dir+".1", earlier ones to ".2" and so on; keepRuns of them stay. Any other
// content of dir is an error that names it and changes nothing.
func Create(dir string, keepRuns int, info Info) (*Run, error) {
	home := resolve(dir)
	at, err := placeFor(home)
	if err != nil {
		return nil, fmt.Errorf("output folder %s: %w", home, err)
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return nil, fmt.Errorf("output folder: %w; choose a writable folder", err)
	}
	lock, err := lockDir(at)
	if err != nil {
		return nil, fmt.Errorf("output folder %s: %w", home, err)
	}
	// Another process may have created its run before the lock.
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

// Resume opens and locks the folder of an unfinished run, or of any run if finished is true. Call [Run.Continue] before
// the first step.
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
	// The previous owner of the lock may have changed the record.
	record, err := ReadRun(dir)
	if err == nil && record.Status == StatusFinished && !finished {
		err = fmt.Errorf("nothing to resume: the run in %s has finished", dir)
	}
	if err != nil {
		lock.release()
		return nil, err
	}
	return &Run{home: dir, dir: dir, record: record, lock: lock}, nil
}

// Continue marks a resumed run as running in this process, which now describes. It returns and records the differences
// from the original process, which may change results, together with the known ones in changed.
func (r *Run) Continue(now Info, changed []string) (differences []string, err error) {
	differences = slices.Clone(changed)
	was := r.record.Info
	differ := func(what string, a, b any) {
		if a != b {
			differences = append(differences, fmt.Sprintf("%s was %v, is now %v", what, a, b))
		}
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(was.Versions)), maps.Keys(now.Versions))
	slices.Sort(names)
	const none = "none"
	for _, name := range slices.Compact(names) {
		differ("version of "+name, cmp.Or(was.Versions[name], none), cmp.Or(now.Versions[name], none))
	}
	differ("device", was.Device, now.Device)
	differ("dtype of frozen weights", cmp.Or(was.DType, none), cmp.Or(now.DType, none))
	differ("threads", was.Threads, now.Threads)
	differ("cpu", was.CPU, now.CPU)
	differ("kernels", cmp.Or(was.Kernels.Set, none), cmp.Or(now.Kernels.Set, none))
	differ("seed", was.Seed, now.Seed)
	r.record.Config = now.Config
	r.record.PID = os.Getpid()
	r.record.Status, r.record.Ending, r.record.Ended, r.record.Files = StatusRunning, "", nil, nil
	r.record.Resumed = append(r.record.Resumed, now.Started)
	return differences, r.note(now.Inputs, differences)
}

// note records the inputs, and why the run may differ from an uninterrupted one.
func (r *Run) note(inputs Inputs, inexact []string) error {
	r.record.Inputs = inputs
	for _, reason := range inexact {
		if !slices.Contains(r.record.Inexact, reason) {
			r.record.Inexact = append(r.record.Inexact, reason)
		}
	}
	return r.write()
}

// Finish records how the run ended and unlocks its folder. The run must not be used afterwards.
func (r *Run) Finish(status Status, ending string, at time.Time) error {
	if r.lock == nil {
		return fmt.Errorf("run %s: Finish called twice", r.dir)
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

// Dir is the current path of the run's folder.
func (r *Run) Dir() string { return r.dir }

// Home is its path once the run has a checkpoint or has finished.
func (r *Run) Home() string { return r.home }

// File returns the path of a file in a subfolder of the run ("logs", "plots", "results"), which it creates if needed.
func (r *Run) File(folder, name string) (string, error) {
	dir := filepath.Join(r.dir, folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("run folder: %w", err)
	}
	return filepath.Join(dir, name), nil
}

func (r *Run) write() error { return files.SaveJSON(filepath.Join(r.dir, runFile), r.record) }

// ReadRun reads dir's run.json. The error wraps [fs.ErrNotExist] if there is none.
func ReadRun(dir string) (Record, error) {
	var record Record
	err := files.LoadJSON(filepath.Join(dir, runFile), &record)
	if errors.Is(err, fs.ErrNotExist) {
		return record, fmt.Errorf("%s is not a run folder: %w", dir, err)
	}
	if err == nil && (record.Program != program || !slices.Contains([]Status{StatusRunning, StatusFinished, StatusStopped, StatusFailed}, record.Status)) {
		err = fmt.Errorf("%s is not of a run of %s: program %.100q, status %.100q; restore it, or choose another folder", filepath.Join(dir, runFile), program, record.Program, record.Status)
	}
	return record, err
}

// About returns the facts that a report shows.
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
		facts = slices.Insert(facts, 3, report.Setting{Name: "duration", Value: report.Duration(r.Ended.Sub(r.Started))})
	}
	if shares := Shares(r.Seconds); shares != "" {
		facts = append(facts, report.Setting{Name: "time", Value: shares})
	}
	if r.PeakMemory > 0 {
		facts = append(facts, report.Setting{Name: "peak memory", Value: fmt.Sprintf("%.0f MiB", float64(r.PeakMemory)/(1<<20))})
	}
	if n := len(r.Resumed); n > 0 {
		facts = append(facts, report.Setting{Name: "resumed", Value: report.Plural(n, "time")})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		facts = append(facts, report.Setting{Name: name, Value: r.Versions[name]})
	}
	return report.About{Title: r.Task + ": " + r.Stage, Stage: r.Stage, Facts: facts, Inexact: r.Inexact}
}

// PeakMemory returns the peak resident memory of this process in bytes; 0 if unknown.
func PeakMemory() int64 {
	bytes, _ := MemoryStatus("self", "VmHWM")
	return bytes
}

// MemoryStatus returns a field of /proc/PROCESS/status, such as VmRSS, in bytes.
func MemoryStatus(process, field string) (int64, error) {
	path := "/proc/" + process + "/status"
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kilobytes << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no field %s", path, field)
}
