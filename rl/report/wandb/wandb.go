// Package wandb writes runs in the offline format of Weights & Biases, for "wandb sync".
//
// A file is a W&B header and a LevelDB log (github.com/google/leveldb, doc/log_format.md) with plain CRC-32 checksums.
// Records are protocol buffers (wandb/proto/wandb_internal.proto).
package wandb

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/internal/wire"
)

// Run describes a run.
type Run struct {
	ID                                  string // "" = 8 random letters and digits
	Project, Entity, Name, Group, Notes string
	JobType                             string
	Tags                                []string
	Config                              map[string]any
	Started                             time.Time
}

// FromEnvironment reads a run from WANDB_PROJECT, WANDB_ENTITY, WANDB_NAME, WANDB_RUN_GROUP, WANDB_JOB_TYPE, WANDB_NOTES,
// WANDB_TAGS and WANDB_RUN_ID. off is true if WANDB_MODE is disabled.
func FromEnvironment(variables map[string]string) (r Run, off bool) {
	r = Run{
		ID: variables["WANDB_RUN_ID"], Project: variables["WANDB_PROJECT"], Entity: variables["WANDB_ENTITY"], Name: variables["WANDB_NAME"],
		Group: variables["WANDB_RUN_GROUP"], JobType: variables["WANDB_JOB_TYPE"], Notes: variables["WANDB_NOTES"],
	}
	if tags := variables["WANDB_TAGS"]; tags != "" {
		r.Tags = strings.Split(tags, ",")
	}
	return r, variables["WANDB_MODE"] == "disabled"
}

// State is the position of a Writer, for checkpoints.
type State struct {
	Folder  string    `json:"folder"` // of the run, relative to the dir of Create
	ID      string    `json:"id"`
	Offset  int64     `json:"offset"`
	Records int64     `json:"records"`
	Rows    int64     `json:"rows"`
	Started time.Time `json:"started"`
}

// Writer appends to a run. It is not safe for concurrent use.
type Writer struct {
	file  *outfile.Appender
	state State
}

var header = []byte(":W&B\xe1\xbe\x00")

const (
	blockSize  = 32 << 10
	chunkHead  = 7        // checksum, length, kind
	oldestRead = "0.70.0" // the oldest version that reads these records
)

// Create starts a run in a new folder in dir/wandb.
func Create(dir string, r Run) (*Writer, error) {
	if r.ID == "" {
		const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
		for range 8 {
			r.ID += string(letters[rand.IntN(len(letters))])
		}
	}
	if strings.ContainsAny(r.ID, `/\ `) {
		return nil, fmt.Errorf("WANDB_RUN_ID %q: use only letters, digits and dashes", r.ID)
	}
	s := State{Folder: filepath.Join("wandb", fmt.Sprintf("offline-run-%s-%s", r.Started.Format("20060102_150405"), r.ID)), ID: r.ID, Started: r.Started}
	if err := os.MkdirAll(filepath.Join(dir, s.Folder, "files"), 0o755); err != nil {
		return nil, err
	}
	w, err := OpenAt(dir, s)
	if err != nil {
		return nil, err
	}
	if err := w.begin(r); err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	return w, nil
}

func (s State) file(dir string) string { return filepath.Join(dir, s.Folder, "run-"+s.ID+".wandb") }

// OpenAt continues a run in dir at a state and removes what follows.
func OpenAt(dir string, s State) (*Writer, error) {
	file, err := outfile.AppendAt(s.file(dir), s.Offset)
	return &Writer{file, s}, err
}

// Folder is the run's folder, relative to the dir of Create.
func (w *Writer) Folder() string { return w.state.Folder }

// State syncs the file to disk and returns the writer's [State].
func (w *Writer) State() (any, error) {
	_, err := w.file.Sync()
	return w.state, err
}

// begin writes the records before the first row.
func (w *Writer) begin(r Run) error {
	if err := w.write(header); err != nil {
		return err
	}
	var version, head, run, config, started wire.Message
	version.Text(1, "rltrain")
	version.Text(2, oldestRead)
	head.Bytes(1, version)
	run.Text(1, r.ID)
	run.Text(2, r.Entity)
	run.Text(3, r.Project)
	for _, key := range slices.Sorted(maps.Keys(r.Config)) {
		item, err := keyed(1, key, r.Config[key])
		if err != nil {
			return err
		}
		config.Bytes(1, item)
	}
	run.Bytes(4, config)
	run.Text(6, r.Group)
	run.Text(7, r.JobType)
	run.Text(8, r.Name)
	run.Text(9, r.Notes)
	for _, tag := range r.Tags {
		run.Text(10, tag)
	}
	if host, err := os.Hostname(); err == nil {
		run.Text(13, host)
	}
	started.Int(1, r.Started.Unix())
	started.Int(2, int64(r.Started.Nanosecond()))
	run.Bytes(17, started)
	// StepKey is the x axis of all curves.
	var metric, options wire.Message
	metric.Text(2, "*")
	metric.Text(4, StepKey)
	options.Int(1, 1)
	options.Int(3, 1)
	metric.Bytes(6, options)
	return errors.Join(w.record(21, head), w.record(17, run), w.record(12, metric))
}

// StepKey is the name of the training step in a row, the x axis of curves.
const StepKey = "train/global_step"

// keyed encodes a key, as the given field, and its JSON value.
func keyed(field int, key string, value any) (wire.Message, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	var m wire.Message
	m.Text(field, key)
	m.Bytes(16, text)
	return m, nil
}

// Row writes one row of numbers, the training step of which is among them, as a step of the run.
func (w *Writer) Row(at time.Time, _ int64, row map[string]float64) error {
	var history, summary, step wire.Message
	add := func(key string, value any) error {
		item, err := keyed(2, key, value)
		history.Bytes(1, item)
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(row)) {
		if err := add(key, row[key]); err != nil {
			return err
		}
		item, err := keyed(2, key, row[key])
		if err != nil {
			return err
		}
		summary.Bytes(1, item)
	}
	if err := errors.Join(add("_step", w.state.Rows), add("_timestamp", float64(at.UnixNano())/1e9), add("_runtime", at.Sub(w.state.Started).Seconds())); err != nil {
		return err
	}
	step.Int(1, w.state.Rows)
	history.Bytes(2, step)
	w.state.Rows++
	return errors.Join(w.record(2, history), w.record(3, summary))
}

// Close ends the run with an exit code and closes the file. W&B shows a run without it as crashed.
func (w *Writer) Close(at time.Time, code int) error {
	var exit wire.Message
	exit.Int(1, int64(code))
	exit.Int(2, int64(at.Sub(w.state.Started).Seconds()))
	err := w.record(18, exit)
	_, synced := w.file.Sync()
	return errors.Join(err, synced, w.file.Close())
}

// record writes one record: its number, and its content as the field kind.
func (w *Writer) record(kind int, what wire.Message) error {
	w.state.Records++
	var m wire.Message
	m.Int(1, w.state.Records)
	m.Bytes(kind, what)
	return w.write(chunks(w.state.Offset, m))
}

func (w *Writer) write(data []byte) error {
	if err := w.file.Append(data); err != nil {
		return err
	}
	w.state.Offset += int64(len(data))
	return nil
}

// Types of a chunk: a complete record, or its first, a middle or its last part.
const (
	whole = 1 + iota
	first
	middle
	last
)

// chunks splits a record at block boundaries. offset is the length of the file.
func chunks(offset int64, data []byte) []byte {
	var out []byte
	for begun := false; ; begun = true {
		left := blockSize - int((offset+int64(len(out)))%blockSize)
		if left < chunkHead {
			out = append(out, make([]byte, left)...)
			left = blockSize
		}
		n := min(left-chunkHead, len(data))
		kind := byte(middle)
		switch ends := n == len(data); {
		case ends && !begun:
			kind = whole
		case ends:
			kind = last
		case !begun:
			kind = first
		}
		sum := crc32.Update(crc32.ChecksumIEEE([]byte{kind}), crc32.IEEETable, data[:n])
		out = binary.LittleEndian.AppendUint32(out, sum)
		out = binary.LittleEndian.AppendUint16(out, uint16(n))
		out = append(append(out, kind), data[:n]...)
		if data = data[n:]; len(data) == 0 {
			return out
		}
	}
}
