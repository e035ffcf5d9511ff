package run

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// saveStep writes a checkpoint whose files contain its step.
func saveStep(t *testing.T, run string, step, keep int) {
	t.Helper()
	must.Do(t, SaveCheckpoint(run, step, keep, func(dir string) error {
		must.Write(t, filepath.Join(dir, "state.json"), strconv.Itoa(step))
		must.Write(t, filepath.Join(dir, "buffers", "rewards.bin"), strings.Repeat("r", 100))
		return nil
	}))
}

func latest(t *testing.T, run string) (int, []string) {
	t.Helper()
	dir, step, skipped, err := LatestCheckpoint(run)
	must.Do(t, err)
	if dir == "" {
		return -1, skipped
	}
	text, err := os.ReadFile(filepath.Join(dir, "state.json"))
	expect.Require(t, err == nil && string(text) == strconv.Itoa(step), "%s says %q, %v; want step %d", dir, text, err, step)
	return step, skipped
}

func TestCheckpointRotation(t *testing.T) {
	run := t.TempDir()
	root := filepath.Join(run, "checkpoints")
	if step, _ := latest(t, run); step != -1 {
		t.Errorf("a run without checkpoints gives step %d", step)
	}
	for step := 8; step <= 12; step++ {
		saveStep(t, run, step, 2)
	}
	expect.Equal(t, []string{"checkpoint-11", "checkpoint-12"}, names(t, root))
	if step, skipped := latest(t, run); step != 12 || skipped != nil {
		t.Errorf("latest is %d, skipped %v", step, skipped)
	}
	saveStep(t, run, 13, 1)
	expect.Equal(t, []string{"checkpoint-13"}, names(t, root))
}

func TestCheckpointSavedTwice(t *testing.T) {
	run := t.TempDir()
	saveStep(t, run, 5, 1)
	must.Write(t, filepath.Join(run, "checkpoints", "checkpoint-5", "old"), "")
	saveStep(t, run, 5, 1)
	expect.Equal(t, []string{"buffers", "manifest.json", "state.json"}, names(t, filepath.Join(run, "checkpoints", "checkpoint-5")))
}

func TestCheckpointWriteFails(t *testing.T) {
	full := errors.New("no space left")
	for _, test := range []struct {
		name  string
		write func(dir string) error
		want  string
	}{
		{"error after half a file", func(dir string) error {
			if err := os.WriteFile(filepath.Join(dir, "state.json"), []byte("ha"), 0o644); err != nil {
				return err
			}
			return full
		}, "no space left"},
		{"a link", func(dir string) error { return os.Symlink("/etc/hosts", filepath.Join(dir, "hosts")) }, "hosts"},
		{"its own manifest", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "manifest.json"), nil, 0o644)
		}, "manifest.json"},
	} {
		t.Run(test.name, func(t *testing.T) {
			run := t.TempDir()
			saveStep(t, run, 1, 1)
			expect.Line(t, SaveCheckpoint(run, 2, 1, test.write), "checkpoint 2", test.want)
			expect.Equal(t, []string{"checkpoint-1"}, names(t, filepath.Join(run, "checkpoints")))
			step, _ := latest(t, run)
			expect.True(t, step == 1, "latest is %d", step)
		})
	}
	expect.Line(t, SaveCheckpoint(t.TempDir(), 1, 0, nil), "keep 0")
	expect.Line(t, SaveCheckpoint(t.TempDir(), -1, 1, nil), "checkpoint -1")
}

func TestDamagedCheckpoints(t *testing.T) {
	for _, d := range []struct {
		name   string
		damage func(dir string) error
		want   string
	}{
		{"truncated file", func(dir string) error { return os.Truncate(filepath.Join(dir, "buffers/rewards.bin"), 99) }, "buffers/rewards.bin has 99 bytes, want 100"},
		{"missing file", func(dir string) error { return os.Remove(filepath.Join(dir, "state.json")) }, "state.json is missing"},
		{"no manifest", func(dir string) error { return os.Remove(filepath.Join(dir, "manifest.json")) }, "manifest.json is missing"},
		{"truncated manifest", func(dir string) error { return os.Truncate(filepath.Join(dir, "manifest.json"), 20) }, "unexpected end of file"},
		{"copied from another step", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "manifest.json"), []byte(`{"step":1,"files":[]}`), 0o644)
		}, "has step 1"},
		{"a name that leads outside", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "manifest.json"), []byte(`{"step":3,"files":[{"name":"../x","size":0,"sha256":""}]}`), 0o644)
		}, "outside"},
	} {
		t.Run(d.name, func(t *testing.T) {
			run := t.TempDir()
			for step := 1; step <= 3; step++ {
				saveStep(t, run, step, 5)
			}
			must.Do(t, d.damage(filepath.Join(run, "checkpoints", "checkpoint-3")))
			step, skipped := latest(t, run)
			expect.True(t, step == 2 && len(skipped) == 1 && strings.HasPrefix(skipped[0], "checkpoint-3: ") && strings.Contains(skipped[0], d.want),
				"latest is %d, skipped %q; want 2 and checkpoint-3: %s", step, skipped, d.want)
			// The run goes back to step 2 and then saves at other steps than before. The damaged later checkpoint must
			// not survive, nor displace an intact one.
			saveStep(t, run, 2, 2)
			expect.Equal(t, []string{"checkpoint-1", "checkpoint-2"}, names(t, filepath.Join(run, "checkpoints")))
		})
	}
	t.Run("all of them", func(t *testing.T) {
		run := t.TempDir()
		saveStep(t, run, 1, 5)
		saveStep(t, run, 2, 5)
		for _, name := range []string{"checkpoint-1", "checkpoint-2"} {
			must.Do(t, os.Remove(filepath.Join(run, "checkpoints", name, "state.json")))
		}
		_, _, skipped, err := LatestCheckpoint(run)
		expect.Line(t, err, "checkpoint-1", "checkpoint-2", "state.json is missing")
		expect.Same(t, 2, len(skipped), "skipped %q", skipped)
	})
}

// TestCheckpointKilled recreates the state after a kill at each point of a save and of the save after it.
func TestCheckpointKilled(t *testing.T) {
	copyDir := func(t *testing.T, from, to string) {
		t.Helper()
		must.Do(t, os.CopyFS(to, os.DirFS(from)))
	}
	// At the start, checkpoints 1 and 2 are complete and 3 is being written.
	for _, test := range []struct {
		name  string
		leave func(t *testing.T, root, whole3 string)
		want  int
	}{
		{"empty .tmp", func(t *testing.T, root, _ string) {
			must.Do(t, os.Mkdir(filepath.Join(root, "checkpoint-3.tmp"), 0o755))
		}, 2},
		{"half a file", func(t *testing.T, root, _ string) {
			must.Write(t, filepath.Join(root, "checkpoint-3.tmp", "state.json"), "")
		}, 2},
		{"before the manifest", func(t *testing.T, root, whole3 string) {
			copyDir(t, whole3, filepath.Join(root, "checkpoint-3.tmp"))
			must.Do(t, os.Remove(filepath.Join(root, "checkpoint-3.tmp", "manifest.json")))
		}, 2},
		{"before the rename", func(t *testing.T, root, whole3 string) {
			copyDir(t, whole3, filepath.Join(root, "checkpoint-3.tmp"))
		}, 3},
		{"while an older 3 is removed", func(t *testing.T, root, whole3 string) {
			copyDir(t, whole3, filepath.Join(root, "checkpoint-3.tmp"))
			must.Write(t, filepath.Join(root, "checkpoint-3", "buffers", "rewards.bin"), "")
		}, 3},
		{"before the rotation", func(t *testing.T, root, whole3 string) {
			copyDir(t, whole3, filepath.Join(root, "checkpoint-3"))
		}, 3},
		{"in the rotation", func(t *testing.T, root, whole3 string) {
			copyDir(t, whole3, filepath.Join(root, "checkpoint-3"))
			must.Do(t, os.Remove(filepath.Join(root, "checkpoint-1", "state.json")))
		}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			other := t.TempDir()
			saveStep(t, other, 3, 1)
			run := t.TempDir()
			root := filepath.Join(run, "checkpoints")
			saveStep(t, run, 1, 2)
			saveStep(t, run, 2, 2)
			test.leave(t, root, filepath.Join(other, "checkpoints", "checkpoint-3"))
			before := names(t, root)
			step, skipped := latest(t, run)
			expect.True(t, step == test.want && (test.want != 2 || skipped == nil), "latest is %d, skipped %v; want %d", step, skipped, test.want)
			expect.Equal(t, before, names(t, root), "looking changed the folder")
			saveStep(t, run, step+1, 2)
			want := []string{"checkpoint-" + strconv.Itoa(step), "checkpoint-" + strconv.Itoa(step+1)}
			expect.Equal(t, want, names(t, root), "after the next save")
		})
	}
}

func TestForeignNamesAreIgnored(t *testing.T) {
	run := t.TempDir()
	saveStep(t, run, 7, 1)
	root := filepath.Join(run, "checkpoints")
	for _, name := range []string{"checkpoint-", "checkpoint-x", "checkpoint-08", "checkpoint--9", "checkpoint-9.bak", "notes"} {
		must.Do(t, os.Mkdir(filepath.Join(root, name), 0o755))
	}
	must.Write(t, filepath.Join(root, "checkpoint-10"), "a file")
	before := names(t, root)
	step, skipped := latest(t, run)
	expect.True(t, step == 7 && skipped == nil, "latest is %d, skipped %v", step, skipped)
	saveStep(t, run, 8, 2)
	want := append(before, "checkpoint-8")
	slices.Sort(want)
	expect.Equal(t, want, names(t, root))
}

// TestEveryByteOfACheckpointCounts changes each byte of each file, in one of several ways: the checkpoint is refused,
// the error names the file, and the checkpoint before it is used.
func TestEveryByteOfACheckpointCounts(t *testing.T) {
	run := t.TempDir()
	saveStep(t, run, 1, 5)
	saveStep(t, run, 2, 5)
	dir := filepath.Join(run, "checkpoints", "checkpoint-2")
	flips := 0
	for _, name := range []string{"manifest.json", "state.json", "buffers/rewards.bin"} {
		path := filepath.Join(dir, name)
		data := must.Get(os.ReadFile(path))(t)
		for i := range data {
			bits := []byte{0x01, 0x20, 0x29, 0x80, 0xff}[i%5] // 0x20 changes case, 0x29 turns a space into a tab
			broken := slices.Clone(data)
			broken[i] ^= bits
			must.Do(t, os.WriteFile(path, broken, 0o644))
			flips++
			// A changed file name is reported under the new name.
			step, skipped := latest(t, run)
			expect.Require(t, step == 1 && len(skipped) == 1 && (strings.Contains(skipped[0], name) || name == "manifest.json"), "byte %d of %s ^ %#x: step %d, skipped %q", i, name, bits, step, skipped)
		}
		must.Do(t, os.WriteFile(path, data, 0o644))
	}
	step, skipped := latest(t, run)
	expect.True(t, step == 2 && skipped == nil, "after repair: step %d, %q", step, skipped)
	t.Logf("%d flips", flips)
}

// pair is two weights, of two and three numbers, in a file.
type pair struct {
	vars    []*torch.Var
	changed int
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{}
	for _, data := range [][]float32{{1, 2}, {3, 4, 5}} {
		v := must.Open(torch.Parameter(data, int64(len(data))))(t)
		p.vars = append(p.vars, v)
	}
	return p
}

func (p *pair) Params() []*torch.Var { return p.vars }
func (p *pair) Changed()             { p.changed++ }

func (p *pair) SaveWeights(dir string) error {
	s, err := TakeSnapshot(p)
	if err != nil {
		return err
	}
	return safetensors.Write(filepath.Join(dir, "pair.safetensors"), []safetensors.Tensor{values("a", s[0]...), values("b", s[1]...)}, nil)
}

func (p *pair) LoadWeights(dir string) error {
	return readAll(filepath.Join(dir, "pair.safetensors"), func(file *safetensors.File) error {
		for i, name := range []string{"a", "b"} {
			data, err := file.Float32s(name)
			if err != nil {
				return err
			}
			if err := p.vars[i].Write(data); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *pair) values(t *testing.T) Snapshot {
	t.Helper()
	return must.Get(TakeSnapshot(p))(t)
}

// step descends on the sum of squares.
func (p *pair) step(t *testing.T, o *torch.Optimizer) {
	t.Helper()
	torchtest.Do(t, torch.Train, func(s *torch.Scope) {
		for _, v := range p.vars {
			s.Backward(s.Sum(s.Mul(v.T(), v.T())))
		}
	})
	must.Get(o.Step([]float64{0.1}, 0))(t)
	p.Changed()
}

func TestSnapshots(t *testing.T) {
	torchtest.NoLeaks(t)
	p := newPair(t)
	s := p.values(t)
	s[1][2] = 50
	expect.Equal(t, Snapshot{{1, 2}, {3, 4, 5}}, p.values(t), "a snapshot is the weights themselves")
	err := s.PutBack(p)
	expect.True(t, err == nil && p.changed == 1, "error %v, %d changes reported", err, p.changed)
	expect.Equal(t, Snapshot{{1, 2}, {3, 4, 50}}, p.values(t), "put back")
	expect.Line(t, s[:1].PutBack(p), "1 tensors, want 2")
	expect.Line(t, Snapshot{{1, 2}, {3}}.PutBack(p), "restoring weights")
}

type counters struct {
	Step int     `json:"step"`
	Best float64 `json:"best"`
}

func values(name string, data ...float32) safetensors.Tensor {
	return safetensors.FromFloat32s(name, []int64{int64(len(data))}, data)
}

func TestTrainingStateRefuses(t *testing.T) {
	torchtest.NoLeaks(t)
	p := newPair(t)
	o := torch.NewOptimizer(torch.AdamEps, torch.ParamGroup{Params: p.vars})
	defer o.Close()
	p.step(t, o)
	for name, test := range map[string]struct {
		change func(dir string) error
		want   []string
	}{
		"weights missing": {func(dir string) error { return os.Remove(filepath.Join(dir, "pair.safetensors")) }, []string{"pair.safetensors"}},
		"state missing":   {func(dir string) error { return os.Remove(filepath.Join(dir, stateFile)) }, []string{stateFile}},
		"state broken": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, stateFile), []byte(`{"state":[]}`), 0o600)
		}, []string{stateFile}},
		"optimiser missing": {func(dir string) error { return os.Remove(filepath.Join(dir, optimizerFile)) }, []string{optimizerFile}},
		"optimiser of others": {func(dir string) error {
			return safetensors.Write(filepath.Join(dir, optimizerFile), []safetensors.Tensor{values("first.0", 1, 2), values("second.0", 1, 2)}, nil)
		}, []string{"has 2 tensors, want 4"}},
		"moment misshapen": {func(dir string) error {
			return safetensors.Write(filepath.Join(dir, optimizerFile), []safetensors.Tensor{
				values("first.0", 1), values("second.0", 1), values("first.1", 1), values("second.1", 1),
			}, nil)
		}, []string{"first.0: "}},
		"best cut short": {func(dir string) error { return Snapshot{{1, 2}}.write(filepath.Join(dir, bestFile)) }, []string{bestFile}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must.Do(t, (&TrainingState{Weights: p, Optimizer: o, State: counters{}}).Save(dir))
			must.Do(t, test.change(dir))
			expect.Line(t, (&TrainingState{Weights: p, Optimizer: o, State: &counters{}}).Restore(dir), append(test.want, "checkpoint: ")...)
		})
	}
}
