package rl

import "slices"

// Batch is the input of one forward pass: S sequences with M actions, by sample.
type Batch struct {
	Sequences [][]int32 // [S]
	// Rows are the positions, in the concatenated sequences, whose state predicts each action; nil for labels.
	Rows    []int64   // [M]
	Actions []int64   // [M]
	Lengths []int     // [S] actions of each sequence
	Options [][]int32 // [S] Sample.Options; nil without decisions
	Routes  []Routes  // [S] Sample.Routes; nil if the router decides for all
	Dropout []uint64  // [S] keys of the dropout masks and of the noise; nil without both
}

// NewBatch makes a batch of samples with at least one action each.
func NewBatch(samples []*Sample) *Batch {
	b := &Batch{}
	begin := int64(0)
	for _, s := range samples {
		for i, action := range s.Actions {
			if s.Rows != nil {
				b.Rows = append(b.Rows, begin+int64(s.Rows[i]))
			}
			b.Actions = append(b.Actions, int64(action))
		}
		if s.Options != nil {
			b.Options = append(b.Options, s.Options)
		}
		begin += int64(len(s.Tokens))
		b.Sequences, b.Lengths = append(b.Sequences, s.Tokens), append(b.Lengths, s.Len())
	}
	if slices.ContainsFunc(samples, func(s *Sample) bool { return s.Routes != nil }) {
		for _, s := range samples {
			b.Routes = append(b.Routes, s.Routes)
		}
	}
	return b
}

// NewTeacherBatch makes a batch of samples as a teacher reads them. Its actions are those of NewBatch.
func NewTeacherBatch(samples []*Sample) *Batch {
	read := make([]*Sample, len(samples))
	for i, x := range samples {
		read[i] = x.ForTeacher()
	}
	return NewBatch(read)
}

// Spread gives each action the value of its sequence. values [S].
func (b *Batch) Spread(values []float64) []float32 {
	out := make([]float32, 0, len(b.Actions))
	for i, n := range b.Lengths {
		for range n {
			out = append(out, float32(values[i]))
		}
	}
	return out
}

// MicroBatches divides n sequences into consecutive parts [begin, end) of at most limit tokens (0 = one part), at least one
// sequence each.
func MicroBatches(n, limit int, length func(i int) int) [][2]int {
	if limit <= 0 {
		return [][2]int{{0, n}}
	}
	var parts [][2]int
	begin, tokens := 0, 0
	for i := range n {
		if i > begin && tokens+length(i) > limit {
			parts = append(parts, [2]int{begin, i})
			begin, tokens = i, 0
		}
		tokens += length(i)
	}
	return append(parts, [2]int{begin, n})
}

// Units groups consecutive samples with the same Prompt: the completions of a prompt, or a pair.
func Units(samples []*Sample) [][]*Sample {
	var units [][]*Sample
	for i, x := range samples {
		if i == 0 || x.Prompt != samples[i-1].Prompt {
			units = append(units, nil)
		}
		last := len(units) - 1
		units[last] = append(units[last], x)
	}
	return units
}

// Parts divides samples into consecutive parts of at most limit tokens (0 = one part), at least one sample each. With together,
// units are not divided.
func Parts(samples []*Sample, together bool, limit int) [][]*Sample {
	var units [][]*Sample
	if together {
		units = Units(samples)
	} else {
		for i := range samples {
			units = append(units, samples[i:i+1])
		}
	}
	var parts [][]*Sample
	for _, bounds := range MicroBatches(len(units), limit, func(i int) int { return Tokens(units[i]) }) {
		parts = append(parts, slices.Concat(units[bounds[0]:bounds[1]]...))
	}
	return parts
}

// Tokens is the number of tokens of samples.
func Tokens(samples []*Sample) int {
	tokens := 0
	for _, x := range samples {
		tokens += len(x.Tokens)
	}
	return tokens
}

// PerSample calls take with each sample and the values of its actions.
func PerSample(samples []*Sample, values []float32, take func(x *Sample, values []float32)) {
	for _, x := range samples {
		n := x.Len()
		take(x, values[:n:n])
		values = values[n:]
	}
}

// Total is the sum of log-probabilities, in float64.
func Total(logProbs []float32) float64 {
	sum := 0.0
	for _, l := range logProbs {
		sum += float64(l)
	}
	return sum
}
