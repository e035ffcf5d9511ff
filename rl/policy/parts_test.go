package policy

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// perturbed returns p with changed weights in its adapter and heads.
func perturbed[P Policy](t testing.TB, p P) P {
	t.Helper()
	for k, v := range p.Params() {
		values := must.Get(v.Read())(t)
		for i := range values {
			values[i] += 0.03 * float32((i*7+k)%11-5)
		}
		must.Do(t, v.Write(values))
	}
	p.Changed()
	return p
}

func wide[T float32 | int64](values ...T) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = float64(v)
	}
	return out
}

// TestPartsChangeNothing runs every function that splits a long batch, with parts of one sequence, parts of 7 tokens,
// and one part. All rows differ, so a part computed twice, or rows indexed from their part's start, would show.
func TestPartsChangeNothing(t *testing.T) {
	torchtest.NoLeaks(t)
	sequences := [][]int32{{4, 5, 6}, {7, 8, 9, 10, 11, 4}, {12, 5}, {6, 4, 9, 13}, {8, 7, 5, 9, 4}, {10, 11}, {5, 6, 12, 7}}
	tiny := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, TinyModel(tiny, 2, 32, 3))
	chat := filepath.Join(t.TempDir(), "chat")
	must.Do(t, TinyChatModel(chat, 2, 32, 3))
	encoder := must.Get(transformers.LoadConfig(filepath.Join("..", "..", "torch", "transformers", "testdata", "encoders", "roberta")))(t)

	type part struct {
		limit func(tokens int)
		run   func() []float64
	}
	cases := map[string]part{}
	for name, c := range map[string]Config{"encoder": {Pooling: "mean"}, "last token": {Dir: tiny}, "scored labels": {Dir: tiny, Prompt: ask}} {
		for kind, labels := range map[string][]string{"probabilities": artLabels, "rewards": {rewardLabel}} {
			if c.Prompt != nil && kind == "rewards" {
				continue
			}
			c.Labels, c.R, c.Alpha, c.Seed = labels, 4, 8, 5
			build := NewClassifier
			if c.Dir == "" {
				build = func(c Config) (*Classifier, error) { return RandomClassifier(encoder, c) }
			}
			p := must.Open(build(c))(t)
			perturbed(t, p)
			m := &RewardModel{p, -1, ""}
			cases[name+" "+kind] = part{func(tokens int) { p.PartTokens = tokens }, func() (all []float64) {
				if kind == "rewards" {
					return must.Get(m.Scores(t.Context(), sequences))(t)
				}
				for _, row := range must.Get(p.Probs(t.Context(), sequences))(t) {
					all = append(all, wide(row...)...)
				}
				return all
			}}
		}
	}

	lm := must.Open(NewCausalLM(Config{Dir: tiny, R: 4, Alpha: 8, Seed: 5}))(t)
	perturbed(t, lm)
	prompts, completions := [][]int32{}, [][]int32{}
	for _, ids := range sequences {
		prompts, completions = append(prompts, ids[:1]), append(completions, ids[1:])
	}
	limitLM := func(tokens int) { lm.PartTokens = tokens }
	cases["scores of completions"] = part{limitLM, func() (all []float64) {
		for _, one := range must.Get(lm.Score(t.Context(), prompts, completions, 0.7))(t) {
			all = append(append(append(all, wide(one.LogProbs...)...), wide(one.Entropy...)...), wide(one.Rank...)...)
		}
		return all
	}}
	var samples []*rl.Sample
	for i, ids := range sequences {
		x := &rl.Sample{Tokens: ids, Prompt: i}
		for at := 1; at < len(ids); at++ {
			x.Rows, x.Actions = append(x.Rows, at-1), append(x.Actions, ids[at])
		}
		samples = append(samples, x)
	}
	cases["validation"] = part{limitLM, func() []float64 {
		v := must.Get(lm.Validate(t.Context(), samples))(t)
		return []float64{v.Loss, v.Entropy, v.Accuracy, float64(v.Labels)}
	}}
	decider, decisions := &Decider{decides: lm, lm: lm}, []*rl.Sample{}
	for _, ids := range sequences {
		decisions = append(decisions, &rl.Sample{Tokens: ids, Rows: []int{len(ids) - 1}, Actions: []int32{0}, Options: []int32{5, ids[0] + 4, 9}[:2+len(ids)%2]})
	}
	cases["decisions"] = part{limitLM, func() (all []float64) {
		for _, logProbs := range must.Get(decider.LogProbs(t.Context(), decisions))(t) {
			all = append(all, wide(logProbs...)...)
		}
		return all
	}}
	grader := must.Open(NewRewardModel(Config{Dir: tiny, R: 4, Alpha: 8, Seed: 5, MaxLength: 100}))(t)
	var answers []envs.Completion
	var ends [][]int
	for _, steps := range [][]string{{"b c", "d"}, {"e"}, {"f a b", "c", "d e"}, {"a", "b d"}} {
		x, at := cutSteps(envs.Observation{Text: "one: "}, "", "\n", steps...)
		answers, ends = append(answers, x), append(ends, at)
	}
	cases["scores of steps"] = part{func(tokens int) { grader.PartTokens = tokens }, func() (all []float64) {
		scores, errs := grader.Steps(t.Context(), answers, ends, "\n")
		must.Do(t, errors.Join(errs...))
		return slices.Concat(scores...)
	}}
	judge := must.Open(NewJudge(chat, "", time.Time{}))(t)
	cases["judge"] = part{func(tokens int) { judge.policy.PartTokens = tokens }, func() []float64 {
		return must.Get(judge.Choose(t.Context(), question("Answer:"), []string{"No", "Yes", "1", "10", "12"}))(t)
	}}

	// A teacher's divergence is split by logits: for one action, for 7, for all.
	teacher := must.Open(NewCausalLM(Config{Dir: chat, Seed: 9}))(t)
	for _, kind := range []string{ReverseKL, ForwardKL, JSD} {
		d := Divergence{Kind: kind, Mix: 0.3}
		cases["teacher "+kind] = part{func(tokens int) {
			if d.PartLogits = tokens; tokens < math.MaxInt {
				d.PartLogits *= lm.VocabSize()
			}
		}, func() (all []float64) {
			must.Do(t, torch.ZeroGrad(lm.Params()))
			must.Do(t, torch.Do(torch.Train, func(s *torch.Scope) error {
				b := rl.NewBatch(samples)
				weight := make([]float32, len(b.Actions))
				for i := range weight {
					weight[i] = 0.1 * float32(i+1)
				}
				how := Pass{Temperature: 0.8}
				loss, err := Diverge(s, lm.Forward(s, b, how), teacher.Forward(s, b, how), d, weight)
				if err != nil {
					return err
				}
				all = append(all, s.Item(loss))
				s.Backward(loss)
				for _, v := range lm.Params() {
					if g, ok := s.Grad(v); ok {
						all = append(all, wide(s.Read(g)...)...)
					}
				}
				return nil
			}))
			return all
		}}
	}

	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.limit(math.MaxInt)
			want := c.run()
			expect.Require(t, len(want) >= 4, "only %d values", len(want))
			expect.Require(t, slices.Max(want) != slices.Min(want), "all values are the same")
			for _, tokens := range []int{1, 7} {
				c.limit(tokens)
				expect.Equal(t, want, c.run(), cmpopts.EquateApprox(1e-4, 1e-6), fmt.Sprintf("parts of %d tokens", tokens))
			}
		})
	}
}

// heldBytes is this process's anonymous resident memory.
func heldBytes(t *testing.T) float64 {
	t.Helper()
	torch.ReleaseMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "RssAnon:"); found {
			kilobytes := must.Get(strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64))(t)
			return 1024 * kilobytes
		}
	}
	t.Skip("the system does not report memory")
	return 0
}

// TestFrozenWeightsAreStoredOnce: a sampler packs the weights once, in addition to the mapped file; a second sampler,
// scores and updates share them. Another policy shows what a copy would cost.
func TestFrozenWeightsAreStoredOnce(t *testing.T) {
	c := Config{Dir: filepath.Join(t.TempDir(), "model"), R: 4, Alpha: 8}
	must.Do(t, TinyModel(c.Dir, 4, 512, 7))
	file := must.Get(os.Stat(filepath.Join(c.Dir, "model.safetensors")))(t)
	open := func() *CausalLM { return must.Open(NewCausalLM(c))(t) }
	sample := func(p *CausalLM) *Sampler { return must.Open(p.NewSampler(4))(t) }
	complete := func(m *Sampler) {
		must.Do(t, m.Generate(t.Context(), [][]int32{{5, 6, 7}}, GenerateOptions{Samples: 4, MaxNew: 8}, func(int, []Completion) error { return nil }))
	}
	complete(sample(open())) // what the process keeps after its first completions
	p := open()
	sequence := Sequence{IDs: slices.Repeat([]int32{5, 6, 7, 8}, 26), Labels: slices.Repeat([]bool{false, true}, 52)}
	gradients := func() {
		torchtest.Do(t, torch.Train, func(s *torch.Scope) { descend(s, p, sequence, false) })
		must.Do(t, torch.ZeroGrad(p.Params()))
	}
	gradients() // kept by every pass
	var m *Sampler
	for _, part := range []struct {
		name        string
		do          func()
		least, most float64 // copies of the weights
	}{
		{"a sampler", func() { m = sample(p) }, 0.9, 1.1},
		{"a second sampler", func() { sample(p) }, -0.1, 0.1},
		{"completions", func() { complete(m) }, -0.1, 0.1},
		{"scores", func() {
			must.Get(p.Score(t.Context(), [][]int32{{5, 6, 7}}, [][]int32{{8, 9}}, 1))(t)
		}, -0.1, 0.1},
		{"gradients", gradients, -0.1, 0.1},
		{"a sampler of another policy", func() { sample(open()) }, 0.9, 1.1},
	} {
		before := heldBytes(t)
		part.do()
		took := (heldBytes(t) - before) / float64(file.Size())
		expect.True(t, took >= part.least && took <= part.most, "%s: %.3f copies of the weights, want %v to %v", part.name, took, part.least, part.most)
	}
}

// TestCacheGrowsWithCompletions: cache memory grows with the tokens generated, not with the requested maximum.
func TestCacheGrowsWithCompletions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	must.Do(t, TinyModel(dir, 2, 256, 7))
	p := must.Open(NewCausalLM(Config{Dir: dir}))(t)
	const samples, longest = 16, 2000
	m := must.Open(p.NewSampler(samples))(t)
	write := func(longest, tokens int) {
		t.Helper()
		id := must.Get(m.Submit([]int32{5, 6, 7}, 0, GenerateOptions{Samples: samples, MaxNew: longest, Sampling: torch.Sampling{Temperature: 1}}, func(Progress) {}))(t)
		for range tokens {
			must.Do(t, m.Step())
		}
		must.Do(t, m.Cancel(id))
	}
	write(4, 4) // needed by any completion
	before := heldBytes(t)
	write(longest, 4)
	const asked = samples * longest * 2 * 2 * 256 * 4 // keys and values of two layers
	took := (heldBytes(t) - before) / asked
	expect.True(t, took <= 0.2, "completions of 4 tokens took %.2f of what %d tokens need", took, longest)
}
