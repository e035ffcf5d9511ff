package train

import (
	"os"
	"path/filepath"
	"strconv"

	rltrun "github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// liveState is what a run on disk has besides weights and moments.
type liveState struct {
	Next     int  `json:"next"`
	Gradient bool `json:"gradient"`
}

// state is everything of a run that training changes.
func (r *run) state(more any) *rltrun.TrainingState {
	return &rltrun.TrainingState{Weights: r.policy, Optimizer: r.optimizer, State: more}
}

// restoreLive continues from the folder that leave wrote, and removes it: from now on it is out of date.
func (r *run) restoreLive() error {
	dir := filepath.Join(r.dir, liveFolder)
	var s liveState
	if err := r.state(&s).Restore(dir); err != nil {
		return err
	}
	if s.Gradient {
		if err := restoreGradient(dir, r.policy.Params()); err != nil {
			return err
		}
	}
	r.gradient = s.Gradient
	return os.RemoveAll(dir)
}

// gradientFile has the accumulated gradient of each parameter, in the order of Params.
const gradientFile = "gradient.safetensors"

func saveGradient(dir string, params []*torch.Var) error {
	all := make([]safetensors.Tensor, len(params))
	err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		for i, p := range params {
			shape := s.Shape(p.T())
			data := make([]float32, 0)
			if grad, ok := s.Grad(p); ok {
				data = s.Read(grad)
			} else {
				shape = []int64{0}
			}
			all[i] = safetensors.FromFloat32s(strconv.Itoa(i), shape, data)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return safetensors.Write(filepath.Join(dir, gradientFile), all, nil)
}

// restoreGradient gives parameters the saved gradients: those of Σ parameter · gradient.
func restoreGradient(dir string, params []*torch.Var) error {
	file, err := safetensors.Open(filepath.Join(dir, gradientFile))
	if err != nil {
		return err
	}
	defer file.Close()
	return torch.Do(torch.Train, func(s *torch.Scope) error {
		for i, p := range params {
			data, err := file.Float32s(strconv.Itoa(i))
			if err != nil {
				return err
			}
			if len(data) > 0 {
				s.Backward(s.Sum(s.Mul(p.T(), s.Floats(data, s.Shape(p.T())...))))
			}
		}
		return nil
	})
}
