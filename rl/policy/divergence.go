package policy

import (
	"cmp"
	"fmt"
	"math"

	"github.com/rltrain/rltrain/torch"
)

// Divergence measures the distance of a student's distribution p from its teacher's q over the full vocabulary, in nats.
type Divergence struct {
	Kind string  // one of the constants
	Mix  float64 // b of JSD, in (0,1)
	// PartLogits is how many logits of a model Diverge holds at a time, at least those of one action; 0 = 2²¹.
	PartLogits int
}

// Kinds of divergence.
const (
	ReverseKL = "reverse" // Σ p·log(p/q): the student prefers what its teacher finds likely
	ForwardKL = "forward" // Σ q·log(q/p): the student covers all that its teacher finds likely
	JSD       = "jsd"     // b·KL(q, m) + (1−b)·KL(p, m), m = b·q + (1−b)·p (Agarwal et al. 2024, equation 1)
)

const defaultPartLogits = 1 << 21

// Diverge is Σ w·D(p, q) over the M actions of a batch. student and teacher are the outputs of two language models with one
// vocabulary for the same batch; only the student gets a gradient.
func Diverge(s *torch.Scope, student, teacher Output, d Divergence, weight []float32) (loss torch.Tensor, err error) {
	q := teacher.vocabulary
	return student.vocabulary.sum(s, weight, d.PartLogits, func(s *torch.Scope, p torch.Tensor, rows torch.Tensor) torch.Tensor {
		return d.of(s, p, s.Detach(q.logProbs(s, s.Rows(q.states, rows))))
	})
}

// Uniform is Σ w·H(u, π) over the M actions of a batch, H(u, π) = −(1/C) Σ_c log π(c) being the cross-entropy of the uniform
// distribution over the C tokens or labels.
func Uniform(s *torch.Scope, out Output, weight []float32) (loss torch.Tensor, err error) {
	cross := func(s *torch.Scope, logProbs torch.Tensor) torch.Tensor {
		return s.Scale(s.SumLast(logProbs), -1/float64(s.Shape(logProbs)[1]))
	}
	if out.vocabulary.size == 0 {
		return s.Sum(s.Mul(cross(s, out.Labels), s.Floats(weight, int64(len(weight))))), nil
	}
	return out.vocabulary.sum(s, weight, 0, func(s *torch.Scope, p, _ torch.Tensor) torch.Tensor { return cross(s, p) })
}

// sum is Σ w·f over M actions, f [m] being a function of log π of every token, [m, V], at the given actions. The distributions of a
// few actions, of at most partLogits logits (0 = 2²¹), are computed and differentiated at a time, so that memory does not grow with
// M·V.
func (v vocabulary) sum(s *torch.Scope, weight []float32, partLogits int, f func(s *torch.Scope, p, rows torch.Tensor) torch.Tensor) (loss torch.Tensor, err error) {
	width := s.Shape(v.states)[1]
	states, slope := s.Read(v.states), make([]float32, 0, len(weight)*int(width))
	sum := 0.0
	for begin, most := 0, max(1, cmp.Or(partLogits, defaultPartLogits)/v.size); begin < len(weight); begin += most {
		end := min(begin+most, len(weight))
		part, err := torch.Parameter(states[begin*int(width):end*int(width)], int64(end-begin), width)
		if err != nil {
			return loss, err
		}
		err = torch.Do(torch.Train, func(s *torch.Scope) error {
			rows := make([]int64, 0, end-begin)
			for i := begin; i < end; i++ {
				rows = append(rows, int64(i))
			}
			of := f(s, v.logProbs(s, part.T()), s.Ints(rows, int64(len(rows))))
			weighted := s.Sum(s.Mul(of, s.Floats(weight[begin:end], int64(end-begin))))
			sum += s.Item(weighted)
			s.Backward(weighted) // a trained head gets its gradient here
			grad, _ := s.Grad(part)
			slope = append(slope, s.Read(grad)...)
			return nil
		})
		part.Close()
		if err != nil {
			return loss, err
		}
	}
	// A tensor with this gradient, and the value.
	through := s.Sum(s.Mul(v.states, s.Floats(slope, int64(len(weight)), width)))
	return s.Shift(s.Sub(through, s.Detach(through)), sum), nil
}

// of is the divergence of p and q from each other, [m]; both are log-probabilities, [m, V].
func (d Divergence) of(s *torch.Scope, p, q torch.Tensor) torch.Tensor {
	kl := func(a, b torch.Tensor) torch.Tensor { return s.SumLast(s.Mul(s.Exp(a), s.Sub(a, b))) }
	switch d.Kind {
	case ForwardKL:
		return kl(q, p)
	case JSD:
		// log(e^x + e^y) = x − log σ(x − y)
		x, y := s.Shift(q, math.Log(d.Mix)), s.Shift(p, math.Log(1-d.Mix))
		m := s.Sub(x, s.LogSigmoid(s.Sub(x, y)))
		return s.Add(s.Scale(kl(q, m), d.Mix), s.Scale(kl(p, m), 1-d.Mix))
	default:
		return kl(p, q)
	}
}

// CheckSameTokenizer refuses another policy whose tokens are not p's: their distributions are over different things.
func (p *CausalLM) CheckSameTokenizer(other *CausalLM) error {
	own, others := p.Tokenizer.IDs(), other.Tokenizer.IDs()
	differ := 0
	example := ""
	for token, id := range own {
		if at, ok := others[token]; !ok || at != id {
			if differ++; example == "" || token < example {
				example = token
			}
		}
	}
	switch {
	case differ > 0:
		return fmt.Errorf("%s and %s have different tokenizers: %d of %d tokens differ, such as %q", p.BaseModel, other.BaseModel, differ, len(own), example)
	case len(own) != len(others):
		return fmt.Errorf("%s and %s have different tokenizers: %d and %d tokens", p.BaseModel, other.BaseModel, len(own), len(others))
	case p.VocabSize() != other.VocabSize():
		return fmt.Errorf("%s and %s have different vocabulary sizes: %d and %d logits", p.BaseModel, other.BaseModel, p.VocabSize(), other.VocabSize())
	}
	return nil
}
