package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/transformers"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

// frozenRun is a linear classifier on the encoder's untrained vectors, for CLINC150's intents: the baseline for training the
// encoder. The validation rows select its regularisation.
type frozenRun struct {
	Way      string      `json:"way"`
	C        float64     `json:"c"` // weight of the sum of losses relative to half the squared norm of the weights
	N        int         `json:"n"`
	Accuracy float64     `json:"accuracy"`
	Interval rl.Interval `json:"interval"`
	Seconds  float64     `json:"seconds"`
}

// encoderName is the encoder of the task text.
const encoderName = "sentence-transformers/all-MiniLM-L6-v2"

// vectors are the rows of one split: unit vectors [n, H] and labels.
type vectors struct {
	x     []float32
	label []int
}

// frozen measures the linear classifiers, unless the results have them.
func (e *textExperiment) frozen(ctx context.Context, file string) error {
	if len(e.results.Frozen) > 0 {
		return nil
	}
	rows, err := dataset.Read(file, dataset.Columns{})
	if err != nil {
		return err
	}
	if err := torch.Open(1); err != nil {
		return err
	}
	thread := torch.NewThread()
	defer thread.Close()
	return thread.Do(ctx, func(ctx context.Context) error {
		parts, labels, width, err := embed(ctx, rows)
		if err != nil {
			return err
		}
		for _, way := range []struct {
			name string
			loss func(s *torch.Scope, scores torch.Tensor, truth []int, classes int) torch.Tensor
		}{{"logistic regression", crossEntropy}, {"linear SVM", squaredHinge}} {
			r := frozenRun{Way: way.name}
			began := time.Now()
			best := -1.0
			for _, c := range []float64{1, 10, 100} {
				val, test, err := fit(parts, labels, width, c, way.loss)
				if err != nil {
					return fmt.Errorf("%s: %w", way.name, err)
				}
				if val.Accuracy > best {
					best = val.Accuracy
					r.C, r.N, r.Accuracy, r.Interval = c, test.N, test.Accuracy, test.Intervals.Accuracy
				}
			}
			r.Seconds = time.Since(began).Seconds()
			fmt.Printf("%-20s frozen, %-20s C %-5g accuracy %.4f of %d\n", intents, r.Way, r.C, r.Accuracy, r.N)
			e.results.Frozen = append(e.results.Frozen, r)
		}
		return save(e.out, e.results)
	})
}

// embed returns the encoder's normalised mean vector of each row, by split.
func embed(ctx context.Context, rows []dataset.Row) (parts map[string]*vectors, labels []string, width int, err error) {
	found, err := new(hub.Client).Model(ctx, encoderName, hub.Weights)
	if err != nil {
		return nil, nil, 0, err
	}
	model, err := transformers.Load(found.Dir, "")
	if err != nil {
		return nil, nil, 0, err
	}
	defer model.Close()
	tokenizer, err := tokenizer.Load(found.Dir)
	if err != nil {
		return nil, nil, 0, err
	}
	defer tokenizer.Close()
	if labels, err = dataset.Labels(rows); err != nil {
		return nil, nil, 0, err
	}
	width = model.Config.HiddenSize
	parts = map[string]*vectors{dataset.Train: {}, dataset.Val: {}, dataset.Test: {}}
	for batch := range slices.Chunk(rows, 256) {
		ids := make([][]int32, len(batch))
		for i, r := range batch {
			if ids[i], _, err = tokenizer.Encode(r.Text, model.Config.MaxLength()); err != nil {
				return nil, nil, 0, err
			}
		}
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			x := s.Read(s.SegmentMean(s.Hidden(model.Encoder, torch.Pack(ids), torch.Pass{})))
			for i, r := range batch {
				row := x[i*width : (i+1)*width]
				norm := 0.0
				for _, v := range row {
					norm += float64(v) * float64(v)
				}
				part := parts[r.Split]
				for _, v := range row {
					part.x = append(part.x, v/float32(math.Sqrt(norm)))
				}
				part.label = append(part.label, slices.Index(labels, r.Label))
			}
			return nil
		}); err != nil {
			return nil, nil, 0, err
		}
	}
	return parts, labels, width, nil
}

// fitSteps of AdamW on all rows bring the loss close to its minimum.
const fitSteps = 150

// fit trains a linear layer and evaluates it on the validation and test rows.
func fit(parts map[string]*vectors, labels []string, width int, c float64,
	loss func(s *torch.Scope, scores torch.Tensor, truth []int, classes int) torch.Tensor) (val, test rl.Evaluation, err error) {
	classes := len(labels)
	weight, err := torch.Parameter(make([]float32, classes*width), int64(classes), int64(width))
	if err != nil {
		return val, test, err
	}
	bias, err := torch.Parameter(make([]float32, classes), int64(classes))
	if err != nil {
		weight.Close()
		return val, test, err
	}
	optimizer := torch.NewOptimizer(torch.AdamEps, torch.ParamGroup{Params: []*torch.Var{weight, bias}})
	defer func() { optimizer.Close(); torch.CloseAll(weight, bias) }()
	scores := func(s *torch.Scope, v *vectors) torch.Tensor {
		return s.Linear(s.Floats(v.x, int64(len(v.label)), int64(width)), weight.T(), bias.T())
	}
	train := parts[dataset.Train]
	for step := range fitSteps {
		if err := torch.Do(torch.Train, func(s *torch.Scope) error {
			held := s.Scale(s.Sum(s.Mul(weight.T(), weight.T())), 0.5/(c*float64(len(train.label))))
			s.Backward(s.Add(loss(s, scores(s, train), train.label, classes), held))
			return nil
		}); err != nil {
			return val, test, err
		}
		if _, err := optimizer.Step([]float64{0.3 * (1 - float64(step)/fitSteps)}, 0); err != nil {
			return val, test, err
		}
	}
	err = torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		for _, part := range []struct {
			v    *vectors
			into *rl.Evaluation
		}{{parts[dataset.Val], &val}, {parts[dataset.Test], &test}} {
			probs := slices.Collect(slices.Chunk(s.Read(s.Exp(s.LogSoftmax(scores(s, part.v)))), classes))
			*part.into = rl.Evaluate(labels, part.v.label, probs)
		}
		return nil
	})
	return val, test, err
}

// crossEntropy is the mean of −log softmax(scores)[label].
func crossEntropy(s *torch.Scope, scores torch.Tensor, truth []int, _ int) torch.Tensor {
	index := make([]int64, len(truth))
	for i, label := range truth {
		index[i] = int64(label)
	}
	return s.Scale(s.Sum(s.Pick(s.LogSoftmax(scores), s.Ints(index, int64(len(index))))), -1/float64(len(truth)))
}

// squaredHinge is Σ_k max(0, 1 − y_k·score_k)², one class against all others, averaged over rows.
func squaredHinge(s *torch.Scope, scores torch.Tensor, truth []int, classes int) torch.Tensor {
	signs := make([]float32, len(truth)*classes)
	for i, label := range truth {
		for k := range classes {
			signs[i*classes+k] = -1
		}
		signs[i*classes+label] = 1
	}
	short := s.ReLU(s.Shift(s.Neg(s.Mul(s.Floats(signs, int64(len(truth)), int64(classes)), scores)), 1))
	return s.Scale(s.Sum(s.Mul(short, short)), 1/float64(len(truth)))
}
