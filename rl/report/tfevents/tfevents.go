// Package tfevents writes TensorBoard event files: scalars, texts and hyperparameters.
//
// A file is a sequence of records: length, CRC of the length, an Event protocol buffer, and its CRC
// (tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto).
package tfevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/internal/wire"
)

// Writer appends events to a file. It is not safe for concurrent use.
type Writer struct{ file *outfile.Appender }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// masked is the masked CRC-32C of record files.
func masked(data []byte) uint32 {
	c := crc32.Checksum(data, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

// Create creates an event file in dir, with a name that TensorBoard finds.
func Create(dir string, now time.Time) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	file, err := outfile.AppendAt(filepath.Join(dir, fmt.Sprintf("events.out.tfevents.%010d.%s.%d.0", now.Unix(), host, os.Getpid())), 0)
	if err != nil {
		return nil, err
	}
	w := &Writer{file}
	var event wire.Message
	event.Double(1, seconds(now))
	event.Text(3, "brain.Event:2")
	if err := w.record(event); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return w, nil
}

// OpenAt continues a file in dir at a state and removes what follows.
func OpenAt(dir string, s State) (*Writer, error) {
	file, err := outfile.AppendAt(filepath.Join(dir, filepath.Base(s.File)), s.Offset)
	return &Writer{file}, err
}

// Name is the file's name in its folder.
func (w *Writer) Name() string { return filepath.Base(w.file.Name()) }

// State is the position of a Writer, for checkpoints.
type State struct {
	File   string `json:"file"` // its name in its folder
	Offset int64  `json:"offset"`
}

// State syncs the file to disk and returns the writer's [State].
func (w *Writer) State() (any, error) {
	offset, err := w.file.Sync()
	return State{w.Name(), offset}, err
}

// Close closes the file. The format has no place for the time or an exit code.
func (w *Writer) Close(time.Time, int) error { return w.file.Close() }

func (w *Writer) record(data []byte) error {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, masked(b))
	b = append(b, data...)
	b = binary.LittleEndian.AppendUint32(b, masked(data))
	return w.file.Append(b)
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// event writes the values of one step, each a Summary.Value.
func (w *Writer) event(at time.Time, step int64, values ...wire.Message) error {
	var summary, event wire.Message
	for _, v := range values {
		summary.Bytes(1, v)
	}
	event.Double(1, seconds(at))
	event.Int(2, step)
	event.Bytes(5, summary)
	return w.record(event)
}

// Row writes the numbers of one step by tag, as float32.
func (w *Writer) Row(at time.Time, step int64, numbers map[string]float64) error {
	var values []wire.Message
	for _, tag := range slices.Sorted(maps.Keys(numbers)) {
		var v wire.Message
		v.Text(1, tag)
		v.Float(2, float32(numbers[tag]))
		values = append(values, v)
	}
	return w.event(at, step, values...)
}

// Text writes Markdown.
func (w *Writer) Text(at time.Time, step int64, tag, text string) error {
	var dim, shape, tensor, v wire.Message
	dim.Int(1, 1)
	shape.Bytes(2, dim)
	tensor.Int(1, 7) // DT_STRING
	tensor.Bytes(2, shape)
	tensor.Bytes(8, []byte(text))
	v.Text(1, tag+"/text_summary")
	v.Bytes(9, plugin("text", nil))
	v.Bytes(8, tensor)
	return w.event(at, step, v)
}

func plugin(name string, content wire.Message) wire.Message {
	var data, metadata wire.Message
	data.Text(1, name)
	if content != nil {
		data.Bytes(2, content)
	}
	metadata.Bytes(1, data)
	return metadata
}

// Settings writes numbers, strings and booleans for the HParams tab, with the tags of the metrics to compare runs by.
func (w *Writer) Settings(at time.Time, settings map[string]any, metrics ...string) error {
	var experiment, start wire.Message
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		kind, value := valueOf(settings[name])
		var info, entry wire.Message
		info.Text(1, name)
		info.Int(4, kind)
		experiment.Bytes(4, info)
		entry.Text(1, name)
		entry.Bytes(2, value)
		start.Bytes(1, entry)
	}
	for _, tag := range metrics {
		var name, info wire.Message
		name.Text(2, tag)
		info.Bytes(1, name)
		experiment.Bytes(5, info)
	}
	start.Double(5, seconds(at))
	put := func(tag string, field int, what wire.Message) error {
		var data, v wire.Message
		data.Int(1, 0)
		data.Bytes(field, what)
		v.Text(1, tag)
		v.Bytes(9, plugin("hparams", data))
		return w.event(at, 0, v)
	}
	return errors.Join(put("_hparams_/experiment", 2, experiment), put("_hparams_/session_start_info", 3, start))
}

// valueOf encodes a setting as google.protobuf.Value and returns its hparams data type.
func valueOf(setting any) (kind int64, v wire.Message) {
	switch x := setting.(type) {
	case bool:
		n := int64(0)
		if x {
			n = 1
		}
		v.Int(4, n)
		return 2, v
	case int:
		v.Double(2, float64(x))
		return 3, v
	case uint64:
		v.Double(2, float64(x))
		return 3, v
	case float64:
		v.Double(2, x)
		return 3, v
	case []string:
		setting = strings.Join(x, ",")
	}
	v.Bytes(3, fmt.Append(nil, setting))
	return 1, v
}
