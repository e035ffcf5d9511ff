package policy

import (
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
)

// pissa has the pairs of InitPiSSA, and the changes of the model's weights as they are loaded, by name, each of which makes one.
func pissa(model *transformers.Config, c lora.Config, failed *error) (start []lora.Pair, changes map[string]func([]float32), err error) {
	chosen, err := chosenLinears(model.Linears(), model.ExpertModules(), c)
	changes = map[string]func([]float32){}
	start = make([]lora.Pair, len(chosen))
	for i, linear := range chosen {
		changes[linear.Name+".weight"] = func(weight []float32) {
			pair, err := principal(linear, weight, c)
			if err != nil {
				*failed = fmt.Errorf("policy: pissa of %s: %w", linear.Name, err)
				return
			}
			start[i] = pair
			pair.Scale = -pair.Scale
			pair.MergeInto(weight)
		}
	}
	return start, changes, err
}

// principal is the pair of the c.R largest singular values of a weight W = U·S·V: A = √(S/scale)·V, B = U·√(S/scale).
func principal(linear transformers.Linear, weight []float32, c lora.Config) (lora.Pair, error) {
	p := lora.Pair{Module: linear.Name, R: c.R, In: linear.In, Out: linear.Out, Scale: c.Scale()}
	if most := min(p.In, p.Out); p.R > most {
		return p, fmt.Errorf("a weight of shape [%d %d] has %d singular values, less than the rank %d", p.Out, p.In, most, p.R)
	}
	err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		u, values, v := s.SVD(s.Floats(weight, int64(p.Out), int64(p.In)))
		left, singular, right := s.Read(u), s.Read(values), s.Read(v)
		p.A, p.B = right[:p.R*p.In], make([]float32, p.Out*p.R)
		for r := range p.R {
			root := float32(math.Sqrt(float64(singular[r]) / p.Scale))
			for i := range p.In {
				p.A[r*p.In+i] *= root
			}
			for o := range p.Out {
				p.B[o*p.R+r] = left[o*len(singular)+r] * root
			}
		}
		return nil
	})
	return p, err
}

// doubled is c with the rank of joined pairs, at the same scale.
func doubled(c lora.Config) lora.Config {
	c.R *= 2
	if c.RSLoRA {
		c.Alpha *= math.Sqrt2
	} else {
		c.Alpha *= 2
	}
	return c
}

// joined is the pair that changes the model in files as pair changes the one without start: B·A − B₀·A₀. scale is that of doubled.
func joined(pair, start lora.Pair, scale float64) lora.Pair {
	both := lora.Pair{Module: pair.Module, R: 2 * pair.R, In: pair.In, Out: pair.Out, Scale: scale, A: slices.Concat(pair.A, start.A)}
	for o := range pair.Out {
		both.B = append(both.B, pair.B[o*pair.R:(o+1)*pair.R]...)
		for _, v := range start.B[o*pair.R : (o+1)*pair.R] {
			both.B = append(both.B, -v)
		}
	}
	return both
}

// divided is the first half of a joined pair, of rank r.
func divided(both lora.Pair, r int) (pair lora.Pair, err error) {
	if both.R != 2*r {
		return both, fmt.Errorf("rank %d, want %d", both.R, 2*r)
	}
	pair = both
	pair.R, pair.A, pair.B = r, both.A[:r*both.In], nil
	for o := range both.Out {
		pair.B = append(pair.B, both.B[2*o*r:(2*o+1)*r]...)
	}
	return pair, nil
}
