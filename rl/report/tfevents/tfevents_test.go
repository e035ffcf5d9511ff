package tfevents

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/wire"
)

var noon = time.Unix(1_800_000_000, 250_000_000)

func TestChecksumOfTheFormat(t *testing.T) {
	// CRC-32C of "123456789" is 0xe3069283 (RFC 3720, appendix B.4 uses the same polynomial).
	expect.Same(t, uint32(0xe3069283>>15|0xe3069283<<17&0xffffffff)+0xa282ead8, masked([]byte("123456789")), "masked")
}

func TestFileResumesAtItsCheckpoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tensorboard")
	w := must.Get(Create(dir, noon))(t)
	ok, _ := regexp.MatchString(`^events\.out\.tfevents\.1800000000\..+\.0$`, w.Name())
	expect.True(t, ok, "name %q", w.Name())
	must.Do(t, w.Settings(noon, map[string]any{"lr": 1e-4, "task": "digits", "on": true, "steps": 3, "targets": []string{"q", "v"}}, "train/reward"))
	must.Do(t, w.Text(noon, 0, "config", "lr: 1e-4"))
	must.Do(t, w.Row(noon, 1, map[string]float64{"train/loss": 0.5, "train/reward": -1}))
	state := must.Get(w.State())(t)
	must.Do(t, w.Row(noon, 2, map[string]float64{"train/loss": 99}))
	must.Do(t, w.Row(noon, 3, map[string]float64{"train/loss": 99}))
	must.Do(t, w.Close(noon, 0))

	path := filepath.Join(dir, w.Name())
	again := must.Get(OpenAt(dir, state.(State)))(t)
	must.Do(t, again.Row(noon, 2, map[string]float64{"train/loss": 0.25}))
	must.Do(t, again.Close(noon, 0))
	data := must.Get(os.ReadFile(path))(t)
	expect.Equal(t, []Scalar{{1, "train/loss", 0.5}, {1, "train/reward", -1}, {2, "train/loss", 0.25}}, must.Get(Read(bytes.NewReader(data)))(t))
	for i := range data {
		broken := bytes.Clone(data)
		broken[i] ^= 1
		_, err := Read(bytes.NewReader(broken))
		expect.Require(t, err != nil, "byte %d of %d flipped: nothing is noticed", i, len(data))
	}
	expect.Fails(OpenAt(dir, State{w.Name(), int64(len(data)) + 1}))(t, "a file that is shorter than its checkpoint is taken")
}

func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	w := must.Get(Create(dir, noon))(f)
	must.Do(f, w.Row(noon, 3, map[string]float64{"a": 1}))
	_ = w.Close(noon, 0)
	data := must.Get(os.ReadFile(filepath.Join(dir, w.Name())))(f)
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = Read(bytes.NewReader(data)) })
}

// Scalar is a number of an event file.
type Scalar struct {
	Step  int64
	Tag   string
	Value float32
}

// Read reads the numbers of an event file and verifies its checksums.
func Read(r io.Reader) ([]Scalar, error) {
	in := bufio.NewReader(r)
	var all []Scalar
	for {
		var head [12]byte
		if _, err := io.ReadFull(in, head[:]); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return all, fmt.Errorf("reading the length of a record: %w", err)
		}
		size := binary.LittleEndian.Uint64(head[:8])
		if masked(head[:8]) != binary.LittleEndian.Uint32(head[8:]) || size > 1<<30 {
			return all, errors.New("wrong checksum of a length")
		}
		data, err := io.ReadAll(io.LimitReader(in, int64(size)+4))
		if err != nil || uint64(len(data)) != size+4 {
			return all, fmt.Errorf("record of %d bytes is truncated", size)
		}
		if masked(data[:size]) != binary.LittleEndian.Uint32(data[size:]) {
			return all, errors.New("wrong checksum of a record")
		}
		scalars, err := scalarsOf(data[:size])
		if err != nil {
			return all, err
		}
		all = append(all, scalars...)
	}
}

func scalarsOf(event []byte) (all []Scalar, err error) {
	fields, err := wire.Fields(event)
	if err != nil {
		return nil, err
	}
	step := int64(0)
	for _, f := range fields {
		switch f.Number {
		case 2:
			step = int64(f.Value)
		case 5:
			values, err := wire.Fields(f.Bytes)
			if err != nil {
				return nil, err
			}
			for _, v := range values {
				parts, err := wire.Fields(v.Bytes)
				if err != nil {
					return nil, err
				}
				one, isScalar := Scalar{Step: step}, false
				for _, part := range parts {
					switch part.Number {
					case 1:
						one.Tag = string(part.Bytes)
					case 2:
						one.Value, isScalar = part.Float(), true
					}
				}
				if isScalar {
					all = append(all, one)
				}
			}
		}
	}
	return all, nil
}
