package algo

import (
	"fmt"
	"runtime"
	"sync"

	"rltrain/envs/dataset"
)

// Examples are labelled texts as a policy sees them.
type Examples struct {
	IDs    [][]int32 // token ids of each text
	Labels []int     // index into the policy's labels
	Cut    int       // texts that were longer than the policy's MaxLength
}

// Len is the number of examples.
func (e Examples) Len() int { return len(e.IDs) }

// at gathers the examples of the given indices.
func (e Examples) at(indices []int) (ids [][]int32, labels []int64) {
	ids, labels = make([][]int32, len(indices)), make([]int64, len(indices))
	for i, n := range indices {
		ids[i], labels[i] = e.IDs[n], int64(e.Labels[n])
	}
	return ids, labels
}

// Encode turns rows into examples. Errors name the file and line of a text that cannot be encoded, or of a
// label that the policy does not have.
func (p *LabelPolicy) Encode(rows []dataset.Row) (Examples, error) {
	labels, err := dataset.LabelIndex(rows, p.Labels)
	if err != nil {
		return Examples{}, err
	}
	e := Examples{IDs: make([][]int32, len(rows)), Labels: labels}
	cut := make([]bool, len(rows))
	errs := make([]error, len(rows))
	var wait sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wait.Go(func() {
			for i := w; i < len(rows); i += workers {
				e.IDs[i], cut[i], errs[i] = p.tokenizer.Encode(rows[i].Text, p.MaxLength)
			}
		})
	}
	wait.Wait()
	for i, err := range errs {
		if err != nil {
			return Examples{}, fmt.Errorf("%s:%d: %w", rows[i].File, rows[i].Line, err)
		}
		if cut[i] {
			e.Cut++
		}
	}
	return e, nil
}

// EncodeText is the token ids of one text, and whether it was cut at MaxLength.
func (p *LabelPolicy) EncodeText(text string) (ids []int32, cut bool, err error) {
	return p.tokenizer.Encode(text, p.MaxLength)
}

// microBatches divides n examples into consecutive parts of at most limit tokens each (0 = one part), at
// least one example a part.
func microBatches(ids [][]int32, limit int) [][2]int {
	if limit <= 0 {
		return [][2]int{{0, len(ids)}}
	}
	var parts [][2]int
	begin, tokens := 0, 0
	for i, sequence := range ids {
		if i > begin && tokens+len(sequence) > limit {
			parts = append(parts, [2]int{begin, i})
			begin, tokens = i, 0
		}
		tokens += len(sequence)
	}
	return append(parts, [2]int{begin, len(ids)})
}
