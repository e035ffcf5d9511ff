package wandb

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/wire"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// rows returns a run's rows as JSON, by key.
func rows(t *testing.T, data []byte) (all []map[string]string) {
	t.Helper()
	for i, record := range must.Get(Read(data))(t) {
		fields := get(wire.Fields(record))
		expect.Same(t, uint64(i+1), fields[0].Value, "record %d has the number", i+1)
		if fields[1].Number != 2 {
			continue
		}
		row := map[string]string{}
		for _, f := range get(wire.Fields(fields[1].Bytes)) {
			if f.Number == 1 {
				item := get(wire.Fields(f.Bytes))
				row[string(item[0].Bytes)] = string(item[1].Bytes)
			}
		}
		all = append(all, row)
	}
	return all
}

func get[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func check(t *testing.T, err error) {
	t.Helper()
	must.Do(t, err)
}

func TestRunResumesAtItsCheckpoint(t *testing.T) {
	dir := t.TempDir()
	r, off := FromEnvironment(map[string]string{"WANDB_PROJECT": "digits", "WANDB_RUN_ID": "abcd1234", "WANDB_TAGS": "a,b", "WANDB_MODE": "offline"})
	expect.True(t, !off, "an offline run is off")
	r.Started, r.Config = noon, map[string]any{"lr": 1e-4}
	w := get(Create(dir, r))
	check(t, w.Row(noon.Add(time.Second), 0, map[string]float64{"train/loss": 0.5, StepKey: 1}))
	state := get(w.State())
	check(t, w.Row(noon.Add(time.Second), 0, map[string]float64{"train/loss": 99}))
	check(t, w.Close(noon, 1))
	var saved State
	check(t, json.Unmarshal(get(json.Marshal(state)), &saved))
	w = get(OpenAt(dir, saved))
	check(t, w.Row(noon.Add(2*time.Second), 0, map[string]float64{"train/loss": 0.25, StepKey: 2}))
	check(t, w.Close(noon.Add(3*time.Second), 0))

	path := filepath.Join(dir, "wandb", "offline-run-20260304_120000-abcd1234", "run-abcd1234.wandb")
	data := get(os.ReadFile(path))
	want := []map[string]string{
		{"train/loss": "0.5", StepKey: "1", "_step": "0", "_timestamp": "1772625601", "_runtime": "1"},
		{"train/loss": "0.25", StepKey: "2", "_step": "1", "_timestamp": "1772625602", "_runtime": "2"},
	}
	expect.Equal(t, want, rows(t, data))
	for _, text := range []string{"digits", "abcd1234", "lr"} {
		expect.True(t, bytes.Contains(data, []byte(text)), "the file lacks %q", text)
	}
	saved.Offset = int64(len(data)) + 1
	expect.Fails(OpenAt(dir, saved))(t, "a file that is shorter than its checkpoint is taken")
	expect.Fails(Create(dir, Run{ID: "../x", Started: noon}))(t, "an id that leads out of the folder is taken")
}

// TestRecordsAcrossBlocks ends records at and near block boundaries.
func TestRecordsAcrossBlocks(t *testing.T) {
	for n := 2*blockSize - 20; n < 2*blockSize+20; n++ {
		data := append([]byte{}, header...)
		var want []string
		for i, size := range []int{n - blockSize, 5, 3 * blockSize, 0, 1} {
			text := strings.Repeat(fmt.Sprint(i), size)
			want = append(want, text)
			data = append(data, chunks(int64(len(data)), []byte(text))...)
		}
		records, err := Read(data)
		expect.Require(t, err == nil, "%d bytes: %v", n, err)
		for i, text := range want {
			expect.Require(t, string(records[i]) == text, "%d bytes: record %d is another", n, i)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(append(append([]byte{}, header...), chunks(7, []byte("record"))...))
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = Read(data) })
}

// Read reads the records of a file and verifies its checksums.
func Read(data []byte) ([]wire.Message, error) {
	if !bytes.HasPrefix(data, header) {
		return nil, errors.New("not a W&B file: wrong header")
	}
	var records []wire.Message
	var record wire.Message
	for at := len(header); at < len(data); {
		if left := blockSize - at%blockSize; left < chunkHead {
			at += left
			continue
		}
		if len(data)-at < chunkHead {
			return records, fmt.Errorf("byte %d: truncated chunk", at)
		}
		sum, n, kind := binary.LittleEndian.Uint32(data[at:]), int(binary.LittleEndian.Uint16(data[at+4:])), data[at+6]
		if n > len(data)-at-chunkHead {
			return records, fmt.Errorf("byte %d: truncated chunk", at)
		}
		part := data[at+chunkHead : at+chunkHead+n]
		if crc32.Update(crc32.ChecksumIEEE([]byte{kind}), crc32.IEEETable, part) != sum {
			return records, fmt.Errorf("byte %d: wrong checksum of a chunk", at)
		}
		at += chunkHead + n
		record = append(record, part...)
		if kind == whole || kind == last {
			records, record = append(records, record), nil
		}
	}
	if record != nil {
		return records, errors.New("the last record is truncated")
	}
	return records, nil
}
