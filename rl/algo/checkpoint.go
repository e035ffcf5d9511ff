package algo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"rltrain/lora"
	"rltrain/rl"
	"rltrain/torch"
	"rltrain/torch/safetensors"
)

// trainable is what a checkpoint needs of a policy.
type trainable interface {
	params() []*torch.Var         // the trainable weights, in a fixed order
	saveWeights(dir string) error // as the files that users load
	loadWeights(dir string) error // what saveWeights wrote, into params
}

// A snapshot is the values of all trainable weights, in the order of params.
type snapshot [][]float32

func takeSnapshot(p trainable) (snapshot, error) {
	var s snapshot
	for _, v := range p.params() {
		data, err := v.Read()
		if err != nil {
			return nil, fmt.Errorf("policy: copying weights: %w", err)
		}
		s = append(s, data)
	}
	return s, nil
}

func (s snapshot) putBack(p trainable) error {
	params := p.params()
	if len(s) != len(params) {
		return fmt.Errorf("policy: %d weights for %d parameters", len(s), len(params))
	}
	for i, v := range params {
		if err := v.Write(s[i]); err != nil {
			return fmt.Errorf("policy: putting weights back: %w", err)
		}
	}
	return nil
}

// Files of a checkpoint, beside those of saveWeights.
const (
	optimizerFile = "optimizer.safetensors" // <moment>.<parameter>, in the order of the optimiser's groups
	bestFile      = "best.safetensors"      // <parameter>, in the order of params: the best weights so far
	stateFile     = "state.json"
)

// checkpointState wraps an algorithm's own state with the optimiser's step count.
type checkpointState struct {
	OptimizerSteps int             `json:"optimizer_steps"`
	State          json.RawMessage `json:"state"`
}

// saveCheckpoint writes weights, optimiser, best weights (nil = none yet) and the algorithm's state to dir.
func saveCheckpoint(p trainable, dir string, optimizer *torch.AdamW, state any, best snapshot) error {
	if err := p.saveWeights(dir); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	moments, err := optimizer.State()
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	var tensors []safetensors.Tensor
	for i := range moments.First {
		tensors = append(tensors,
			flat("first."+strconv.Itoa(i), moments.First[i]), flat("second."+strconv.Itoa(i), moments.Second[i]))
	}
	if err := safetensors.Write(filepath.Join(dir, optimizerFile), tensors, nil); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if best != nil {
		if err := best.write(filepath.Join(dir, bestFile)); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	encoded, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if err := rl.SaveJSON(filepath.Join(dir, stateFile), checkpointState{moments.Steps, encoded}); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// restoreCheckpoint puts back what saveCheckpoint wrote and decodes the algorithm's state into state.
func restoreCheckpoint(p trainable, dir string, optimizer *torch.AdamW, state any) (best snapshot, err error) {
	if err := p.loadWeights(dir); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	var saved checkpointState
	if err := rl.LoadJSON(filepath.Join(dir, stateFile), &saved); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if err := json.Unmarshal(saved.State, state); err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", filepath.Join(dir, stateFile), err)
	}
	moments := torch.AdamWState{Steps: saved.OptimizerSteps}
	if err := readAll(filepath.Join(dir, optimizerFile), func(file *safetensors.File) error {
		for i := range len(file.Names()) / 2 {
			first, err := file.Float32s("first." + strconv.Itoa(i))
			if err != nil {
				return err
			}
			second, err := file.Float32s("second." + strconv.Itoa(i))
			if err != nil {
				return err
			}
			moments.First, moments.Second = append(moments.First, first), append(moments.Second, second)
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if err := optimizer.Restore(moments); err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", dir, err)
	}
	if best, err = readSnapshot(filepath.Join(dir, bestFile), len(p.params())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return best, nil
}

func (s snapshot) write(path string) error {
	var tensors []safetensors.Tensor
	for i, data := range s {
		tensors = append(tensors, flat(strconv.Itoa(i), data))
	}
	return safetensors.Write(path, tensors, nil)
}

// readSnapshot reads the n weights that write wrote.
func readSnapshot(path string, n int) (s snapshot, err error) {
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

// writePairs puts the values of pairs into the adapted layers; each layer must have one.
func writePairs(layers []adaptedLayer, pairs []lora.Pair) error {
	loaded := map[string]lora.Pair{}
	for _, pair := range pairs {
		loaded[pair.Module] = pair
	}
	for _, l := range layers {
		pair, ok := loaded[l.Name]
		if !ok {
			return fmt.Errorf("no adapter of %s", l.Name)
		}
		if err := errors.Join(l.a.Write(pair.A), l.b.Write(pair.B)); err != nil {
			return fmt.Errorf("adapter of %s: %w", l.Name, err)
		}
	}
	return nil
}

// readAll opens a file of tensors for read.
func readAll(path string, read func(file *safetensors.File) error) error {
	file, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return read(file)
}

func flat(name string, data []float32) safetensors.Tensor {
	return safetensors.FromFloat32s(name, []int64{int64(len(data))}, data)
}
