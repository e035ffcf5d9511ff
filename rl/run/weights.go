package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// Weights are the trainable weights of a policy.
type Weights interface {
	Params() []*torch.Var         // in a fixed order
	SaveWeights(dir string) error // the files that users load
	LoadWeights(dir string) error // into Params, from SaveWeights
	// Changed reports new values of Params, so that copies, such as a sampler's, are refreshed before their next use.
	Changed()
}

// Keeper is implemented by weights that are not in this process. Copies stay where the weights are, under a number below 2²⁴, which
// a Snapshot holds exactly.
type Keeper interface {
	Keep() (number int, err error)
	Return(number int) error
}

// Snapshot is a copy of all trainable weights, in the order of Params. That of a Keeper is a number.
type Snapshot [][]float32

// TakeSnapshot copies the weights.
func TakeSnapshot(w Weights) (Snapshot, error) {
	if k, ok := w.(Keeper); ok {
		number, err := k.Keep()
		return Snapshot{{float32(number)}}, err
	}
	var s Snapshot
	for _, v := range w.Params() {
		data, err := v.Read()
		if err != nil {
			return nil, fmt.Errorf("copying weights: %w", err)
		}
		s = append(s, data)
	}
	return s, nil
}

// Take copies the weights into s.
func (s Snapshot) Take(w Weights) error {
	if _, ok := w.(Keeper); ok {
		other, err := TakeSnapshot(w)
		copy(s, other)
		return err
	}
	return s.each("copying", w, (*torch.Var).ReadInto)
}

// PutBack writes the snapshot into the weights.
func (s Snapshot) PutBack(w Weights) error {
	if k, ok := w.(Keeper); ok {
		err := k.Return(int(s[0][0]))
		w.Changed()
		return err
	}
	err := s.each("restoring", w, (*torch.Var).Write)
	w.Changed()
	return err
}

func (s Snapshot) each(doing string, w Weights, do func(v *torch.Var, data []float32) error) error {
	params := w.Params()
	if len(s) != len(params) {
		return fmt.Errorf("%s weights: snapshot has %d tensors, want %d", doing, len(s), len(params))
	}
	for i, v := range params {
		if err := do(v, s[i]); err != nil {
			return fmt.Errorf("%s weights: %w", doing, err)
		}
	}
	return nil
}

// Files of a checkpoint, besides those of SaveWeights.
const (
	optimizerFile = "optimizer.safetensors" // torch.Optimizer.States
	bestFile      = "best.safetensors"      // <parameter>, in the order of Params: the best weights so far
	referenceFile = "reference.safetensors" // <parameter>, in the order of Params: the reference policy
	teacherFile   = "teacher.safetensors"   // <parameter>, in the order of Params: the policy's teacher
	stateFile     = "state.json"
)

// Optimizer moves weights along their gradients. *torch.Optimizer does it in this process.
type Optimizer interface {
	// Step takes a learning rate per group of weights, and clips the gradient to a norm of maxNorm (0 = no clipping).
	Step(rates []float64, maxNorm float64) (norm float64, err error)
	States() ([]torch.OptimizerState, error)
	Steps() int
	Continue(steps int) error
	Close()
}

// TrainingState is everything that changes during training.
type TrainingState struct {
	Weights   Weights
	Optimizer Optimizer
	Best      Snapshot // nil if there is none yet
	Reference Snapshot // nil if the reference policy is not a copy of the weights
	Teacher   Snapshot // nil if the teacher is not one
	State     any      // everything else; must round-trip through JSON exactly
}

// encodedState is the content of state.json.
type encodedState struct {
	OptimizerSteps int             `json:"optimizer_steps"`
	State          json.RawMessage `json:"state"`
}

// Save writes the state into a checkpoint folder.
func (t *TrainingState) Save(dir string) error {
	if err := t.save(dir); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

func (t *TrainingState) save(dir string) error {
	if err := t.Weights.SaveWeights(dir); err != nil {
		return err
	}
	states, err := t.Optimizer.States()
	if err != nil {
		return err
	}
	var sources []safetensors.Source
	for _, state := range states {
		n, err := state.Elements()
		if err != nil {
			return err
		}
		sources = append(sources, flat(state.Name, n, state.Read))
	}
	if err := safetensors.WriteSources(filepath.Join(dir, optimizerFile), sources, nil); err != nil {
		return err
	}
	for name, s := range map[string]Snapshot{bestFile: t.Best, referenceFile: t.Reference, teacherFile: t.Teacher} {
		if s == nil {
			continue
		}
		if err := s.write(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	encoded, err := json.Marshal(t.State)
	if err != nil {
		return err
	}
	return files.SaveJSON(filepath.Join(dir, stateFile), encodedState{t.Optimizer.Steps(), encoded})
}

// Restore reads what Save wrote: into Weights, Optimizer, Best, Reference, Teacher and, through its pointer, State.
func (t *TrainingState) Restore(dir string) error {
	if err := t.restore(dir); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

func (t *TrainingState) restore(dir string) error {
	if err := t.Weights.LoadWeights(dir); err != nil {
		return err
	}
	t.Weights.Changed()
	var saved encodedState
	if err := files.LoadJSON(filepath.Join(dir, stateFile), &saved); err != nil {
		return err
	}
	if err := json.Unmarshal(saved.State, t.State); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, stateFile), err)
	}
	if err := t.readStates(filepath.Join(dir, optimizerFile)); err != nil {
		return err
	}
	if err := t.Optimizer.Continue(saved.OptimizerSteps); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	n := len(t.Weights.Params())
	if _, ok := t.Weights.(Keeper); ok {
		n = 1
	}
	for name, s := range map[string]*Snapshot{bestFile: &t.Best, referenceFile: &t.Reference, teacherFile: &t.Teacher} {
		var err error
		if *s, err = readSnapshot(filepath.Join(dir, name), n); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// readStates restores what the optimizer remembers, one tensor at a time.
func (t *TrainingState) readStates(path string) error {
	states, err := t.Optimizer.States()
	if err != nil {
		return err
	}
	return readAll(path, func(file *safetensors.File) error {
		if n := len(file.Names()); n != len(states) {
			return fmt.Errorf("%s has %d tensors, want %d", path, n, len(states))
		}
		for _, state := range states {
			data, err := file.Float32s(state.Name)
			if err == nil {
				err = state.Write(data)
			}
			if err != nil {
				return fmt.Errorf("%s: %s: %w", path, state.Name, err)
			}
		}
		return nil
	})
}

func (s Snapshot) write(path string) error {
	var sources []safetensors.Source
	for i, data := range s {
		sources = append(sources, flat(strconv.Itoa(i), int64(len(data)), func() ([]float32, error) { return data, nil }))
	}
	return safetensors.WriteSources(path, sources, nil)
}

// readSnapshot reads the n tensors that write wrote.
func readSnapshot(path string, n int) (s Snapshot, err error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	err = readAll(path, func(file *safetensors.File) error {
		for i := range n {
			data, err := file.Float32s(strconv.Itoa(i))
			if err != nil {
				return err
			}
			s = append(s, data)
		}
		return nil
	})
	return s, err
}

// readAll opens a safetensors file and calls read.
func readAll(path string, read func(file *safetensors.File) error) error {
	file, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return read(file)
}

// flat is a tensor of n elements that is read only when it is written, so that the file is never in memory.
func flat(name string, n int64, read func() ([]float32, error)) safetensors.Source {
	return safetensors.Source{Name: name, DType: safetensors.F32, Shape: []int64{n}, Data: func() ([]byte, error) {
		data, err := read()
		if err != nil {
			return nil, err
		}
		return safetensors.FromFloat32s(name, nil, data).Data, nil
	}}
}
