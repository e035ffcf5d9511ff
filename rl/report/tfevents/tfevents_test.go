package tfevents

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
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
	got := must.Get(Read(bytes.NewReader(data)))(t)
	want := []Scalar{{1, "train/loss", 0.5}, {1, "train/reward", -1}, {2, "train/loss", 0.25}}
	expect.Equal(t, want, got)
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
