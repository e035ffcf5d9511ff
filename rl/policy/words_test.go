package policy

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// ask is the prompt of these tests.
func ask(asText bool) envs.Observation {
	if asText {
		return envs.Observation{Text: "Say of " + TextMark + ":"}
	}
	return envs.Observation{Messages: []envs.Message{{Role: envs.RoleSystem, Content: "Be brief."}, {Role: envs.RoleUser, Content: TextMark + "?"}}}
}

// languageLabel is a classifier on a small language model, with changed weights in adapter and head.
func languageLabel(t testing.TB, write func(dir string, layers, width int, seed uint64) error, c Config) *Classifier {
	t.Helper()
	c.Dir, c.R, c.Alpha, c.Seed = filepath.Join(t.TempDir(), "tiny"), 4, 8, 5
	must.Do(t, write(c.Dir, 2, 32, 3))
	return perturbed(t, must.Open(NewClassifier(c))(t))
}

var artLabels = []string{"art", "art history", "law"}

func encoded(t testing.TB, p *Classifier, texts ...string) (ids [][]int32) {
	t.Helper()
	for _, text := range texts {
		one, _, err := p.EncodeText(text)
		must.Do(t, err)
		ids = append(ids, one)
	}
	return ids
}

// oneByOne is log π of every label; Token scores each label after each prompt separately.
func oneByOne(s *torch.Scope, p *Classifier, prompts [][]int32, base bool) (logProbs [][]torch.Tensor) {
	for _, prompt := range prompts {
		var sums []torch.Tensor
		for _, label := range p.words.tokens {
			b := &rl.Batch{Sequences: [][]int32{append(slices.Clone(prompt), label...)}}
			for at, token := range label {
				b.Rows, b.Actions = append(b.Rows, int64(len(prompt)-1+at)), append(b.Actions, int64(token))
			}
			sums = append(sums, s.Sum(p.lm.Forward(s, b, Pass{Temperature: 1, Base: base}).LogProbs))
		}
		total := s.Exp(sums[0])
		for _, sum := range sums[1:] {
			total = s.Add(total, s.Exp(sum))
		}
		var row []torch.Tensor
		for _, sum := range sums {
			row = append(row, s.Sub(sum, s.Log(total)))
		}
		logProbs = append(logProbs, row)
	}
	return logProbs
}

// TestScoredLabelsEqualSeparateScores compares probabilities and gradients with those of labels scored one by one.
func TestScoredLabelsEqualSeparateScores(t *testing.T) {
	torchtest.NoLeaks(t)
	for name, write := range map[string]func(string, int, int, uint64) error{"text": TinyModel, "conversation": TinyChatModel} {
		t.Run(name, func(t *testing.T) {
			p := languageLabel(t, write, Config{Labels: artLabels, Prompt: ask})
			expect.Require(t, p.Pooling == PoolScore && (name == "text") == (p.words.prompt.Text != ""), "pooling %s, prompt %+v", p.Pooling, p.words.prompt)
			prompts := encoded(t, p, "a wave", "the old law of 1812", "a wave", "x")
			expect.True(t, !startsWith(p.words.tokens[1], p.words.tokens[0]), "%q has no end token before %q: %v", artLabels[0], artLabels[1], p.words.tokens)
			actions := []int64{2, 0, 1, 1}
			weights := []float64{1, -0.5, 2, 0.7}
			grads := map[bool][][]float32{}
			probs := map[bool][]float32{}
			for _, brute := range []bool{true, false} {
				torchtest.Do(t, torch.Train, func(s *torch.Scope) {
					var loss torch.Tensor
					if brute {
						for i, row := range oneByOne(s, p, prompts, false) {
							for k, l := range row {
								probs[brute] = append(probs[brute], float32(math.Exp(s.Item(l))))
								if int64(k) == actions[i] {
									term := s.Scale(l, weights[i])
									if i > 0 {
										term = s.Add(loss, term)
									}
									loss = term
								}
							}
						}
					} else {
						out := p.Forward(s, &rl.Batch{Sequences: prompts, Actions: actions}, Pass{})
						probs[brute] = s.Read(s.Exp(out.Labels))
						weight := s.Floats([]float32{1, -0.5, 2, 0.7}, 4)
						loss = s.Sum(s.Mul(out.LogProbs, weight))
					}
					s.Backward(loss)
					for _, v := range p.Params() {
						grad, ok := s.Grad(v)
						expect.Require(t, ok, "a parameter without a gradient")
						grads[brute] = append(grads[brute], s.Read(grad))
					}
				})
				must.Do(t, torch.ZeroGrad(p.Params()))
			}
			torchtest.Near(t, probs[false], probs[true], 1e-5, "probabilities")
			for k := range grads[true] {
				torchtest.Near(t, grads[false][k], grads[true][k], 1e-4, "a gradient")
			}
			expect.True(t, probs[true][0] != probs[true][3], "two prompts have the same probabilities")
			alone := must.Get(p.Probs(t.Context(), prompts[2:3]))(t)
			torchtest.Near(t, alone[0], probs[true][6:9], 1e-5, "one prompt alone")
			baseScores(t, p, prompts[:1], probs[true][0])
		})
	}
}

// baseScores switches the adapter off and checks that the base model scores. adapted is the first probability with the
// adapter.
func baseScores(t *testing.T, p *Classifier, prompts [][]int32, adapted float32) {
	t.Helper()
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		got := s.Read(s.Exp(p.Forward(s, &rl.Batch{Sequences: prompts, Actions: []int64{0}}, Pass{Base: true}).Labels))
		var want []float32
		for _, l := range oneByOne(s, p, prompts, true)[0] {
			want = append(want, float32(math.Exp(s.Item(l))))
		}
		torchtest.Near(t, got, want, 1e-5, "the base model")
		expect.True(t, math.Abs(float64(got[0]-adapted)) >= 1e-6, "the adapter changes nothing")
	})
}

// TestScoredValues: a prompt's value is read at its last token, whatever the labels.
func TestScoredValues(t *testing.T) {
	torchtest.NoLeaks(t)
	p := languageLabel(t, TinyModel, Config{Labels: artLabels, Prompt: ask})
	must.Do(t, p.AddValueHead())
	weight := make([]float32, 32)
	for i := range weight {
		weight[i] = float32(i%5) - 2
	}
	must.Do(t, p.value.out.Weight.Write(weight))
	prompts := encoded(t, p, "a wave", "the old law of 1812")
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		got := s.Read(p.Forward(s, &rl.Batch{Sequences: prompts, Actions: []int64{0, 1}}, Pass{Values: true}).Values)
		states := p.lm.lastStates(s, prompts, torch.Pass{Adapter: true})
		want := s.Read(s.Squeeze(s.Linear(states, p.value.out.Weight.T(), p.value.out.Bias.T())))
		torchtest.Near(t, got, want, 1e-4, "a value")
		expect.True(t, got[0] != got[1], "two prompts have the same value")
	})
}

// TestScoredDropout: a prompt keeps its dropout mask in any batch.
func TestScoredDropout(t *testing.T) {
	torchtest.NoLeaks(t)
	p := languageLabel(t, TinyModel, Config{Labels: artLabels, Prompt: ask, Dropout: 0.5})
	prompts := encoded(t, p, "a wave", "the old law of 1812")
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		scores := func(prompts [][]int32, keys ...uint64) []float32 {
			return s.Read(p.Forward(s, &rl.Batch{Sequences: prompts, Actions: make([]int64, len(prompts)), Dropout: keys}, Pass{Dropout: true}).Labels)
		}
		together := scores(prompts, 7, 8)
		torchtest.Near(t, scores(prompts[:1], 7), together[:3], 1e-5, "the first prompt's")
		torchtest.Near(t, scores(prompts[1:], 8), together[3:], 1e-5, "the second prompt's")
		expect.True(t, math.Abs(float64(scores(prompts[1:], 7)[0]-together[3])) >= 1e-5, "another key drops the same")
	})
}

// TestLanguageLabelRoundTrip saves and loads classifiers on language models, with a value head, and restores weights.
func TestLanguageLabelRoundTrip(t *testing.T) {
	torchtest.NoLeaks(t)
	for pooling, c := range map[string]Config{PoolLast: {Labels: artLabels, MaxLength: 20}, PoolScore: {Labels: artLabels, Prompt: ask}} {
		t.Run(pooling, func(t *testing.T) {
			p := languageLabel(t, TinyModel, c)
			must.Do(t, p.AddValueHead())
			must.Do(t, p.value.out.Bias.Write([]float32{0.5}))
			ids := encoded(t, p, "a wave", "the law")
			before := must.Get(p.Probs(t.Context(), ids))(t)
			dir := t.TempDir()
			must.Do(t, p.Save(dir))
			q := must.Open(LoadClassifier(t.Context(), &hub.Client{}, dir, "", true))(t)
			expect.True(t, q.Pooling == pooling && q.MaxLength == p.MaxLength && slices.Equal(q.Labels, artLabels) && q.Adapted(),
				"loaded: pooling %s, %d tokens, labels %q", q.Pooling, q.MaxLength, q.Labels)
			must.Do(t, q.AddValueHead())
			same := func(p *Classifier) {
				t.Helper()
				after := must.Get(p.Probs(t.Context(), encoded(t, p, "a wave", "the law")))(t)
				for i := range before {
					torchtest.Near(t, after[i], before[i], 0, "a probability")
				}
			}
			same(q)
			bias, err := q.value.out.Bias.Read()
			expect.True(t, err == nil && bias[0] == 0.5, "value head's bias %v, %v", bias, err)
			for _, v := range q.Params() {
				values, _ := v.Read()
				must.Do(t, v.Write(make([]float32, len(values))))
			}
			must.Do(t, q.LoadWeights(dir))
			same(q)
			fresh, err := q.Fresh()
			expect.True(t, err == nil && !fresh, "a trained policy is fresh: %v, %v", fresh, err)
			merged := filepath.Join(t.TempDir(), "merged")
			must.Do(t, p.Merge(merged, ""))
			if err := os.RemoveAll(p.dir); err != nil { // a merged model needs no base
				t.Fatal(err)
			}
			m := must.Open(LoadClassifier(t.Context(), &hub.Client{}, merged, "", false))(t)
			after := must.Get(m.Probs(t.Context(), encoded(t, m, "a wave", "the law")))(t)
			for i := range before {
				torchtest.Near(t, after[i], before[i], 1e-5, "a merged probability")
			}
			expect.True(t, m.Pooling == pooling && m.MaxLength == p.MaxLength && !m.Adapted() && slices.Equal(m.Labels, artLabels),
				"merged: pooling %s, %d tokens, labels %q, adapted %v", m.Pooling, m.MaxLength, m.Labels, m.Adapted())
			config := must.Into[map[string]any](t, files.LoadJSON, filepath.Join(merged, "config.json"))
			want := map[string]string{PoolLast: "LlamaForSequenceClassification", PoolScore: "LlamaForCausalLM"}[pooling]
			expect.True(t, reflect.DeepEqual(config["architectures"], []any{want}), "architectures %q, want %s", config["architectures"], want)
		})
	}
}

// TestLastToken: a head reads the state of a text's last token, whatever the rest of the batch.
func TestLastToken(t *testing.T) {
	torchtest.NoLeaks(t)
	p := languageLabel(t, TinyModel, Config{Labels: artLabels})
	ids := encoded(t, p, "the wave", "the wage", "the wave of the sea")
	together := must.Get(p.Probs(t.Context(), ids))(t)
	for i := range ids {
		var want []float32
		torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
			states, _ := s.Hidden(p.lm.core, torch.Pack(ids[i:i+1]), torch.Pass{Adapter: true})
			last := s.Rows(states, s.Ints([]int64{int64(len(ids[i]) - 1)}, 1))
			want = s.Read(s.Exp(s.LogSoftmax(s.Linear(last, p.head.out.Weight.T(), p.head.out.Bias.T()))))
		})
		torchtest.Near(t, together[i], want, 1e-5, "a probability")
	}
	expect.True(t, math.Abs(float64(together[0][0]-together[1][0])) >= 1e-6, "the last but one letter changes nothing")
	for _, v := range p.Params() {
		values, err := v.Read()
		expect.True(t, err == nil && len(values) != len(artLabels), "the bias of a score layer is trained: %v", err)
	}
}

func TestLongTextsInAPrompt(t *testing.T) {
	torchtest.NoLeaks(t)
	p := languageLabel(t, TinyModel, Config{Labels: artLabels, Prompt: ask, MaxLength: 30})
	text := strings.Repeat("abc ", 20)
	ids, cut, err := p.EncodeText(text)
	expect.Require(t, err == nil && cut && len(ids) == 30, "%d tokens, cut %v: %v", len(ids), cut, err)
	shown, n, err := p.Shown(text)
	expect.True(t, err == nil && n == 30 && strings.HasSuffix(shown, ":") && strings.Contains(shown, "Say of abc abc"), "shown %q, %d tokens: %v", shown, n, err)
	_, cut, err = p.EncodeText("abc")
	expect.True(t, !cut && err == nil, "a short text: cut %v, %v", cut, err)
	p.MaxLength = 5
	expect.Failure(p.Encode([]dataset.Row{{Text: text, Label: "law", File: "rows.csv", Line: 3}}))(t, "rows.csv:3: the prompt has 88 tokens")
}

func TestScoringRefuses(t *testing.T) {
	torchtest.NoLeaks(t)
	dir := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, TinyModel(dir, 1, 32, 3))
	encoder := filepath.Join("..", "..", "torch", "transformers", "testdata", "encoders", "roberta")
	for _, test := range []struct {
		c    Config
		want string
	}{
		{Config{Dir: dir, Labels: []string{"ä", "ö"}, Prompt: ask}, `labels "ä" and "ö" have the same tokens`},
		{Config{Dir: dir, Labels: []string{"a", strings.Repeat("b", 5000)}, Prompt: ask}, "5002 tokens"},
		{Config{Dir: dir, Labels: []string{"a", "b"}, Pooling: transformers.PoolMean}, `pooling "mean" is for encoders`},
		{Config{Dir: encoder, Labels: []string{"a", "b"}, Prompt: ask}, "is an encoder"},
	} {
		p, err := NewClassifier(test.c)
		if err == nil {
			p.Close()
		}
		expect.Error(t, err, test.want)
	}
	// A folder with an altered file.
	p := languageLabel(t, TinyModel, Config{Labels: artLabels, Prompt: ask})
	saved := t.TempDir()
	must.Do(t, p.Save(saved))
	for record, want := range map[string]string{
		`{"pooling":"score","max_length":20}`:                               "has no {text}",
		`{"pooling":"score","max_length":20,"prompt":{"Text":"what?"}}`:     "has no {text}",
		`{"pooling":"score","max_length":99999,"prompt":{"Text":"{text}"}}`: "max_length is 99999",
		`{"pooling":"last","max_length":20}`:                                "task_type is CAUSAL_LM",
		`{"pooling":"first","max_length":20}`:                               `pooling is "first"`,
	} {
		must.Do(t, os.WriteFile(filepath.Join(saved, policyFile), []byte(record), 0o644))
		if q, err := LoadClassifier(t.Context(), &hub.Client{}, saved, "", false); err == nil || !strings.Contains(err.Error(), want) {
			if err == nil {
				q.Close()
			}
			t.Errorf("%s: error %v, want %q", record, err, want)
		}
	}
}

// BenchmarkScore scores 14 labels after a prompt of 64 tokens: with the prompt computed once, and for each label.
func BenchmarkScore(b *testing.B) {
	lm := must.Get(RandomCausalLM(transformers.LlamaShape{Vocab: 8192, Hidden: 512, Layers: 8, Heads: 8, KVHeads: 4, Intermediate: 1408, RopeTheta: 10000}, torch.F32, "", Config{Seed: 1}))(b)
	p := &Classifier{Labels: make([]string, 14), Pooling: PoolScore, backbone: lm.backbone, lm: lm}
	defer lm.Close()
	prompt := make([]int32, 64)
	for i := range prompt {
		prompt[i] = int32(100 + 7*i)
	}
	for k := range p.Labels {
		p.words.tokens = append(p.words.tokens, []int32{int32(1000 + k), int32(2000 + k), 5})
	}
	b.Run("together", func(b *testing.B) {
		for b.Loop() {
			must.Get(p.Probs(b.Context(), [][]int32{prompt}))(b)
		}
	})
	b.Run("alone", func(b *testing.B) {
		for b.Loop() {
			torchtest.Do(b, torch.NoGrad, func(s *torch.Scope) {
				for _, row := range oneByOne(s, p, [][]int32{prompt}, false) {
					for _, l := range row {
						s.Item(l)
					}
				}
			})
		}
	})
}
