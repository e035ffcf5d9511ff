package tfevents

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Unix(1_800_000_000, 250_000_000)

func TestChecksumOfTheFormat(t *testing.T) {
	// CRC-32C of "123456789" is 0xe3069283 (RFC 3720, appendix B.4 uses the same polynomial).
	if got, want := masked([]byte("123456789")), uint32(0xe3069283>>15|0xe3069283<<17&0xffffffff)+0xa282ead8; got != want {
		t.Errorf("%#x, want %#x", got, want)
	}
}

func TestFileResumesAtItsCheckpoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tensorboard")
	w, err := Create(dir, noon)
	if err != nil {
		t.Fatal(err)
	}
	if ok, _ := regexp.MatchString(`^events\.out\.tfevents\.1800000000\..+\.0$`, w.Name()); !ok {
		t.Errorf("name %q", w.Name())
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.Settings(noon, map[string]any{"lr": 1e-4, "task": "digits", "on": true, "steps": 3, "targets": []string{"q", "v"}}, "train/reward"))
	must(w.Text(noon, 0, "config", "lr: 1e-4"))
	must(w.Row(noon, 1, map[string]float64{"train/loss": 0.5, "train/reward": -1}))
	state, err := w.State()
	must(err)
	must(w.Row(noon, 2, map[string]float64{"train/loss": 99}))
	must(w.Row(noon, 3, map[string]float64{"train/loss": 99}))
	must(w.Close(noon, 0))

	path := filepath.Join(dir, w.Name())
	again, err := OpenAt(dir, state.(State))
	must(err)
	must(again.Row(noon, 2, map[string]float64{"train/loss": 0.25}))
	must(again.Close(noon, 0))
	data, err := os.ReadFile(path)
	must(err)
	got, err := Read(bytes.NewReader(data))
	must(err)
	want := []Scalar{{1, "train/loss", 0.5}, {1, "train/reward", -1}, {2, "train/loss", 0.25}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for i := range data {
		broken := bytes.Clone(data)
		broken[i] ^= 1
		if _, err := Read(bytes.NewReader(broken)); err == nil {
			t.Fatalf("byte %d of %d flipped: nothing is noticed", i, len(data))
		}
	}
	if _, err := OpenAt(dir, State{w.Name(), int64(len(data)) + 1}); err == nil {
		t.Error("a file that is shorter than its checkpoint is taken")
	}
}

func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	w, err := Create(dir, noon)
	if err != nil {
		f.Fatal(err)
	}
	if err := w.Row(noon, 3, map[string]float64{"a": 1}); err != nil {
		f.Fatal(err)
	}
	_ = w.Close(noon, 0)
	data, err := os.ReadFile(filepath.Join(dir, w.Name()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = Read(bytes.NewReader(data)) })
}
