package policy

import (
	"fmt"
	"iter"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
	template "github.com/rltrain/rltrain/torch/transformers/chat"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// tinyPolicy is a policy on a small character-level model, closed at the end of the test.
func tinyPolicy(t *testing.T, c Config) *CausalLM {
	t.Helper()
	c.Dir = filepath.Join(t.TempDir(), "tiny")
	must.Do(t, TinyModel(c.Dir, 2, 32, 7))
	return must.Open(NewCausalLM(c))(t)
}

func examplesOf(examples ...chat.Example) iter.Seq2[chat.Example, error] {
	return func(yield func(chat.Example, error) bool) {
		for _, e := range examples {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func completionOf(prompt, completion string) chat.Example {
	return chat.Example{File: "f", Line: 1, Format: chat.PromptCompletion, Prompt: chat.Content{Text: prompt}, Completion: chat.Content{Text: completion}}
}

func TestEncodeTrainsTheCompletionAndTheEnd(t *testing.T) {
	p := tinyPolicy(t, Config{})
	for _, c := range []struct {
		name    string
		example chat.Example
		options EncodeOptions
		labels  string // of "ab:cd" and the end token, 1 if trained
		cut     int
		dropped int
	}{
		{"completion", completionOf("ab:", "cd"), EncodeOptions{CompletionOnly: true}, "000111", 0, 0},
		{"all", completionOf("ab:", "cd"), EncodeOptions{}, "011111", 0, 0},
		{"text", chat.Example{Format: chat.LanguageModelling, Text: chat.Content{Text: "ab:cd"}}, EncodeOptions{CompletionOnly: true}, "011111", 0, 0},
		{"cut", completionOf("ab:", "cd"), EncodeOptions{CompletionOnly: true, MaxLength: 4}, "0001", 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := must.Get(p.Encode(examplesOf(c.example), c.options))(t)
			labels := ""
			for _, label := range got.Sequences[0].Labels {
				labels += map[bool]string{false: "0", true: "1"}[label]
			}
			expect.True(t, labels == c.labels && got.Cut == c.cut, "labels %s, %d cut; want %s, %d", labels, got.Cut, c.labels, c.cut)
			ids := got.Sequences[0].IDs
			expect.True(t, c.cut != 0 || ids[len(ids)-1] == p.EOS()[0], "%v does not end with the end token %d", ids, p.EOS()[0])
		})
	}
	mixed, err := p.Encode(examplesOf(completionOf("abcdef", "g"), completionOf("a", "b")), EncodeOptions{CompletionOnly: true, MaxLength: 4})
	expect.True(t, err == nil && mixed.Dropped == 1 && len(mixed.Sequences) == 1, "%d dropped, %d kept, error %v; want 1 and 1", mixed.Dropped, len(mixed.Sequences), err)
	expect.Fails(p.Encode(examplesOf(completionOf("abcdef", "g")), EncodeOptions{CompletionOnly: true, MaxLength: 4}))(t, "a data set without a label is accepted")
	expect.Fails(p.Encode(examplesOf(conversationOf("user", "x")), EncodeOptions{}))(t, "messages are accepted without a chat template")
}

// conversationOf makes an example from messages: role, content, role, content.
func conversationOf(turns ...string) chat.Example {
	e := chat.Example{File: "f", Line: 3, Format: chat.LanguageModelling}
	for i := 0; i < len(turns); i += 2 {
		e.Text.Messages = append(e.Text.Messages, chat.Message{{Name: "role", Value: turns[i]}, {Name: "content", Value: turns[i+1]}})
	}
	return e
}

// A text that already ends with the end token gets no second one.
func TestEncodeEndsOnce(t *testing.T) {
	expect.Equal(t, []bool{false, true}, Sequence{IDs: []int32{4, 5}}.labelsAfter(nil).Labels, "nothing comes before the first token")
	p := tinyPolicy(t, Config{})
	text := func(s string) chat.Example {
		return chat.Example{Format: chat.LanguageModelling, Text: chat.Content{Text: s}}
	}
	got := must.Get(p.Encode(examplesOf(text("ab"), text("ab<eos>"), completionOf("a", "b<eos>"), completionOf("a", "b")), EncodeOptions{}))(t)
	for i, q := range got.Sequences {
		expect.True(t, slices.Equal(q.IDs, got.Sequences[0].IDs) && slices.Equal(q.Labels, []bool{false, true, true}),
			"row %d: %v %v, want %v and all but the first trained", i+1, q.IDs, q.Labels, got.Sequences[0].IDs)
	}
	whole := got.Sequences[0].IDs
	p.eos = nil
	got = must.Get(p.Encode(examplesOf(text("ab")), EncodeOptions{}))(t)
	expect.Equal(t, whole[:len(whole)-1], got.Sequences[0].IDs, "tokens of a model without an end")
}

// tinyChat is a small random model with a chat template.
func tinyChat(t *testing.T) *CausalLM {
	dir := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, TinyChatModel(dir, 1, 32, 7))
	return must.Open(NewCausalLM(Config{Dir: dir}))(t)
}

// Assistant messages are trained whether or not the template marks them.
func TestEncodeAssistantOnly(t *testing.T) {
	p := tinyChat(t)
	bare := must.Get(template.Parse("bare", "{% for m in messages %}{{ m.role + ': ' + m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"))(t)
	marked := p.Templates
	for _, tt := range []struct {
		templates *template.Templates
		want      string
	}{{marked, "yo<eos>ok<eos>"}, {bare, "yo<eos>\nok<eos>\n"}} {
		p.Templates = tt.templates
		got := must.Get(p.Encode(examplesOf(conversationOf("user", "hi", "assistant", "yo", "user", "so", "assistant", "ok")), EncodeOptions{AssistantOnly: true}))(t)
		var trained []int32
		for i, label := range got.Sequences[0].Labels {
			if label {
				trained = append(trained, got.Sequences[0].IDs[i])
			}
		}
		text, err := p.Tokenizer.Decode(trained, false)
		expect.True(t, text == tt.want && err == nil, "%q is trained, want %q; %v", text, tt.want, err)
	}
}

// TestEncodeCuts: with every limit, an example is what it is without one, up to the limit.
func TestEncodeCuts(t *testing.T) {
	p := tinyChat(t)
	talk := conversationOf("user", "hi", "assistant", "yo")
	asked := chat.Example{Format: chat.PromptCompletion, Prompt: chat.Content{Messages: talk.Text.Messages[:1]}, Completion: chat.Content{Messages: talk.Text.Messages[1:]}}
	for name, test := range map[string]struct {
		e chat.Example
		o EncodeOptions
	}{
		"a text":                   {chat.Example{Format: chat.LanguageModelling, Text: chat.Content{Text: "abcde"}}, EncodeOptions{}},
		"a conversation":           {talk, EncodeOptions{}},
		"the assistant alone":      {talk, EncodeOptions{AssistantOnly: true}},
		"a completion":             {completionOf("abc", "de"), EncodeOptions{CompletionOnly: true}},
		"a prompt too":             {completionOf("abc", "de"), EncodeOptions{}},
		"a completion of messages": {asked, EncodeOptions{CompletionOnly: true}},
		"a prompt of messages too": {asked, EncodeOptions{}},
	} {
		whole := must.Get(p.Encode(examplesOf(test.e), test.o))(t)
		want := whole.Sequences[0]
		for limit := 1; limit <= len(want.IDs)+2; limit++ {
			o, n := test.o, min(limit, len(want.IDs))
			o.MaxLength = limit
			got, err := p.Encode(examplesOf(test.e), o)
			if !slices.Contains(want.Labels[:n], true) {
				expect.True(t, err != nil && got.Dropped == 1, "%s within %d tokens: %+v, %v", name, limit, got, err)
				continue
			}
			expect.True(t, err == nil && slices.Equal(got.Sequences[0].IDs, want.IDs[:n]) && slices.Equal(got.Sequences[0].Labels, want.Labels[:n]) && (got.Cut == len(want.IDs)-n || got.Cut == 1) && (got.Cut == 1) == (n < len(want.IDs)), "%s within %d tokens: %+v, want %+v; %v", name, limit, got, want, err)
		}
	}
}

func TestAnswersShareTheirPrompt(t *testing.T) {
	p := tinyPolicy(t, Config{R: 4, Alpha: 8})
	prompt := []int32{3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	ids := [][]int32{append(prompt[:10:10], 20, 21), append(prompt[:10:10], 30, 31, 32), {40, 41, 42}}
	rows, targets := []int64{9, 10, 21, 22, 23, 25, 26}, []int64{20, 21, 30, 31, 32, 41, 42}
	packed, _, _ := p.pack(ids, rows, torch.Pass{})
	n := len(packed.Tokens)
	expect.True(t, n == 15, "%d tokens are computed, want 10 of the prompt and 5 others: nothing is read off the last ones", n)
	if packed, _, _ := p.pack(ids, rows, torch.Pass{Dropout: torch.Dropout{P: 0.1}}); len(packed.Tokens) != 25 {
		t.Errorf("with dropout %d tokens are computed, want 25: completions have different masks", len(packed.Tokens))
	}
	score := func(ids [][]int32, rows, targets []int64) (logProbs []float32) {
		t.Helper()
		torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
			logProbs = s.Read(p.Forward(s, &rl.Batch{Sequences: ids, Rows: rows, Actions: targets}, Pass{Temperature: 1}).LogProbs)
		})
		return logProbs
	}
	together := score(ids, rows, targets)
	// By themselves, sequences also read their last token, so that every row is compared.
	alone := slices.Concat(score(ids[:1], []int64{9, 10, 11}, []int64{20, 21, 0})[:2], score(ids[1:2], []int64{9, 10, 11, 12}, []int64{30, 31, 32, 0})[:3], score(ids[2:], []int64{0, 1, 2}, []int64{41, 42, 0})[:2])
	d := torchtest.RelativeError(together, alone)
	expect.True(t, d <= 1e-6, "log-probabilities differ by %.1e from those of separate sequences", d)
	slices.Reverse(rows)
	slices.Reverse(targets)
	backwards := score(ids, rows, targets)
	slices.Reverse(backwards)
	expect.Equal(t, together, backwards, "read from the last to the first")
}

// TestStopStringsEndCompletions generates a completion, then generates it again with a part of it as the stop string.
func TestStopStringsEndCompletions(t *testing.T) {
	p := tinyPolicy(t, Config{})
	sampler := must.Open(p.NewSampler(2))(t)
	prompt := must.Get(p.EncodeText("k:"))(t)
	generate := func(stop ...string) (c Completion, told string) {
		t.Helper()
		o := GenerateOptions{Samples: 1, MaxNew: 12, Sampling: torch.Sampling{Temperature: 1}, Seed: 3, Stop: stop, OnText: func(_, _ int, text string) { told += text }}
		must.Do(t, sampler.Generate(t.Context(), [][]int32{prompt}, o, func(_ int, all []Completion) error { c = all[0]; return nil }))
		return c, told
	}
	whole, told := generate()
	expect.Require(t, len(whole.Text) >= 8 && told == whole.Text, "the policy generates %q and reports %q: too little for this test", whole.Text, told)
	stop := whole.Text[4:6]
	at := strings.Index(whole.Text, stop)
	for _, also := range []string{"", stop + "\x00", whole.Text[6:]} {
		got, told := generate(stop, also+"\x00")
		expect.True(t, got.Text == whole.Text[:at] && got.Reason == torch.ReasonStop && told == got.Text && len(got.IDs) == at+2,
			"stopped at %q of %q: %+v, reported %q", stop, whole.Text, got, told)
		expect.Equal(t, whole.IDs[:len(got.IDs)], got.IDs, "other tokens")
	}
}

// TestStopTokensEndCompletions: a stop token is among the tokens, and its text is not in the text.
func TestStopTokensEndCompletions(t *testing.T) {
	p := tinyPolicy(t, Config{})
	sampler := must.Open(p.NewSampler(2))(t)
	generate := func(stop ...int32) (c Completion) {
		o := GenerateOptions{Samples: 1, MaxNew: 12, Sampling: torch.Sampling{Temperature: 1}, Seed: 3, StopIDs: stop}
		must.Do(t, sampler.Generate(t.Context(), [][]int32{must.Get(p.EncodeText("k:"))(t)}, o, func(_ int, all []Completion) error { c = all[0]; return nil }))
		return c
	}
	whole := generate()
	at := slices.Index(whole.IDs, whole.IDs[5])
	got := generate(whole.IDs[5])
	want := must.Get(p.Tokenizer.Decode(whole.IDs[:at], true))(t)
	expect.True(t, got.Text == want && slices.Equal(got.IDs, whole.IDs[:at+1]) && got.Reason == torch.ReasonStop, "stopped at token %d of %v, %q: %+v", at, whole.IDs, whole.Text, got)
}

// TestAdaptersAreUnloaded: the number of an adapter that is gone is refused, and its place is taken by the next.
func TestAdaptersAreUnloaded(t *testing.T) {
	p := tinyPolicy(t, Config{R: 4, Alpha: 8})
	dir := t.TempDir()
	must.Do(t, p.SaveAdapter(dir))
	sampler := must.Open(p.NewSampler(2))(t)
	one, other := must.Get(p.WithAdapter(dir))(t), must.Get(p.WithAdapter(dir))(t)
	defer one.Close()
	defer other.Close()
	first, second := must.Get(sampler.Load(one))(t), must.Get(sampler.Load(other))(t)
	generate := func(adapter int) error {
		o := GenerateOptions{Samples: 1, MaxNew: 2, Sampling: torch.Sampling{Temperature: 1}, Adapter: adapter}
		return sampler.Generate(t.Context(), [][]int32{{5, 6}}, o, func(int, []Completion) error { return nil })
	}
	must.Do(t, sampler.Unload(first))
	expect.True(t, generate(first) != nil, "an adapter that was unloaded generates")
	for _, adapter := range []int{0, second} {
		expect.NoError(t, generate(adapter), "adapter %d", adapter)
	}
	expect.Same(t, first, must.Get(sampler.Load(one))(t), "the free place")
	expect.NoError(t, generate(first), "a loaded adapter")
	expect.Error(t, sampler.Generate(t.Context(), [][]int32{{}}, GenerateOptions{Samples: 1, MaxNew: 2}, nil), "prompt 1 is empty")
	longest := [][]int32{slices.Repeat([]int32{5}, p.MaxLength()-1)}
	must.Do(t, sampler.Generate(t.Context(), longest, GenerateOptions{Samples: 1, MaxNew: 1}, func(int, []Completion) error { return nil }))
}

// TestTopLogProbsInParts: a long text's rows are read part by part.
func TestTopLogProbsInParts(t *testing.T) {
	torchtest.NoLeaks(t)
	shape := transformers.LlamaShape{Vocab: defaultPartLogits / 3, Hidden: 8, Layers: 1, Heads: 2, KVHeads: 2, Intermediate: 16, RopeTheta: 1e4}
	p := must.Open(RandomCausalLM(shape, torch.F32, "", Config{R: 1, Alpha: 1, Targets: []string{"q_proj"}, Seed: 3}))(t)
	ids := []int32{3, 900, 27, 4, 70000, 6, 1, 12}
	plain, top := must.Get(p.TopLogProbs(t.Context(), ids, 1, 0, 1))(t), must.Get(p.TopLogProbs(t.Context(), ids, 1, 2, 1))(t)
	for i := range plain {
		expect.True(t, math.Abs(float64(plain[i].LogProb-top[i].LogProb)) <= 1e-4 && top[i].LogProbs[0] >= top[i].LogProbs[1], "token %d: %v, with the most likely %+v", i+1, plain[i], top[i])
	}
}

// TestScoreAgreesWithSampling compares the log-probabilities of a completion with those recorded while sampling it.
func TestScoreAgreesWithSampling(t *testing.T) {
	p := tinyPolicy(t, Config{})
	sampler := must.Open(p.NewSampler(3))(t)
	prompts, completions := [][]int32{{5, 6, 7}, {8}}, make([][]int32, 2)
	var sampled [][]float32
	o := GenerateOptions{Samples: 1, MaxNew: 6, Sampling: torch.Sampling{Temperature: 0.5, TopK: 5}, Seed: 3}
	must.Do(t, sampler.Generate(t.Context(), prompts, o, func(prompt int, c []Completion) error {
		completions[prompt], sampled = c[0].IDs, append(sampled, c[0].LogProbs)
		for i, drawn := range c[0].BehaviorLogProbs {
			expect.True(t, drawn >= c[0].LogProbs[i] && drawn <= 0, "token %d: log-probability %v under the filter, %v without", i, drawn, c[0].LogProbs[i])
		}
		return nil
	}))
	scored := must.Get(p.Score(t.Context(), prompts, completions, 1))(t)
	var samples []*rl.Sample
	sum, right, n := 0.0, 0.0, 0.0
	for i, x := range scored {
		sample := &rl.Sample{Tokens: slices.Concat(prompts[i], completions[i]), Actions: completions[i]}
		samples = append(samples, sample)
		for j, l := range x.LogProbs {
			sample.Rows = append(sample.Rows, len(prompts[i])+j-1)
			sum, n = sum-float64(l), n+1
			if x.Rank[j] == 0 {
				right++
			}
			expect.True(t, math.Abs(float64(l-sampled[i][j])) <= 1e-4 && x.Rank[j] < 5, "token %d of completion %d: scored %v, sampled with %v; rank %d", j, i, l, sampled[i][j], x.Rank[j])
		}
		// The same with the most likely tokens in place of each.
		for _, n := range []int{0, 5} {
			top, err := p.TopLogProbs(t.Context(), slices.Concat(prompts[i], completions[i]), len(prompts[i]), n, 1)
			expect.Require(t, err == nil && len(top) == len(x.LogProbs), "%d tokens, %v", len(top), err)
			for j, one := range top {
				expect.True(t, math.Abs(float64(one.LogProb-x.LogProbs[j])) <= 1e-5 && len(one.IDs) == n && (n <= 0 || one.IDs[x.Rank[j]] == completions[i][j]),
					"token %d of completion %d is %d: %+v", j, i, completions[i][j], one)
			}
		}
	}
	v := must.Get(p.Validate(t.Context(), samples))(t)
	expect.Equal(t, []float64{sum / n, right / n, n}, []float64{v.Loss, v.Accuracy, float64(v.Labels)}, cmpopts.EquateApprox(1e-5, 0))
	expect.True(t, right > 0, "no sampled token is the most likely one")
}

// TestRowsThatDoNotFit: errors number rows from 1; a prompt may end where the new tokens just fit.
func TestRowsThatDoNotFit(t *testing.T) {
	p := tinyPolicy(t, Config{})
	sampler := must.Open(p.NewSampler(2))(t)
	o := GenerateOptions{Samples: 1, MaxNew: 2, Seed: 3}
	generate := func(length int) error {
		return sampler.Generate(t.Context(), [][]int32{{5}, slices.Repeat([]int32{6}, length)}, o, func(int, []Completion) error { return nil })
	}
	must.Do(t, generate(p.MaxLength()-2))
	expect.Error(t, generate(p.MaxLength()-1), fmt.Sprintf("generating: prompt 2 has %d tokens, and 2 new ones exceed", p.MaxLength()-1))
	expect.Error(t, generate(0), "prompt 2 is empty")
	long := slices.Repeat([]int32{6}, p.MaxLength()-1)
	must.Get(p.Score(t.Context(), [][]int32{{5}, {5}}, [][]int32{{6}, long}, 1))(t)
	for _, completion := range [][]int32{{}, append(long, 6)} {
		expect.Failure(p.Score(t.Context(), [][]int32{{5}, {5}}, [][]int32{{6}, completion}, 1))(t, fmt.Sprintf("scoring: row 2 has 1 prompt and %d completion tokens", len(completion)))
	}
	expect.Failure(p.Score(t.Context(), [][]int32{{}}, [][]int32{{6}}, 1))(t, "row 1 has 0 prompt")
}

// TestAdvisedRate compares with the rates of Tinker's cookbook for Llama-3.1-8B and Qwen3-4B.
func TestAdvisedRate(t *testing.T) {
	for _, c := range []struct {
		family    string
		hidden    int
		low, high float64
	}{{"llama", 4096, 2.86e-4, 2.86e-4}, {"qwen3", 2560, 4.91e-4, 4.91e-4}, {"gemma2", 4096, 2.86e-4, 4.73e-4}, {"gemma2", 576, 5.51e-4, 1.322e-3}} {
		for _, full := range []bool{false, true} {
			low, high := AdvisedRate(&transformers.Config{ModelType: c.family, HiddenSize: c.hidden}, full)
			if full {
				low, high = 10*low, 10*high
			}
			expect.True(t, math.Abs(low/c.low-1) < 0.005 && math.Abs(high/c.high-1) < 0.005, "%+v, full %t: %g to %g", c, full, low, high)
		}
	}
}

// TestTrainingTakesTheSamplersRoutes: where a router is near ties, log π while training is that of sampling only with the experts of
// sampling. The completions of a prompt share its tokens.
func TestTrainingTakesTheSamplersRoutes(t *testing.T) {
	p := must.Open(NewCausalLM(Config{Dir: adapterBase(t, "mixture"), Full: true}))(t)
	for _, name := range []string{"layers.0.router.weight", "layers.1.router.weight"} {
		weight := p.model.Weights[name]
		values := must.Get(weight.Read())(t)
		for i := range values { // all experts alike, but for the last bits of their outputs
			values[i] = values[i%p.width()] * (1 + 1e-7*float32(i%7))
		}
		must.Do(t, weight.Write(values))
	}
	sampler := must.Open(p.NewSampler(3))(t)
	prompt := []int32{7, 41, 12, 88, 3, 60, 23, 98, 5, 71}
	const samples, width = 6, 2 * 2
	var written []Completion
	o := GenerateOptions{Samples: samples, MaxNew: 24, Sampling: torch.Sampling{Temperature: 1}, StopIDs: []int32{50}}
	must.Do(t, sampler.Generate(t.Context(), [][]int32{prompt}, o, func(_ int, c []Completion) error {
		written = append(written, c...)
		return nil
	}))
	var batch []*rl.Sample
	for _, c := range written {
		expect.Equal(t, (len(prompt)+len(c.IDs)-1)*width, len(c.Routes))
		trajectory := &rl.Trajectory{}
		trajectory.AppendGiven(prompt...)
		trajectory.AppendRoutes(c.Routes, len(c.IDs), len(c.IDs))
		for i, id := range c.IDs {
			trajectory.AppendSampled(id, c.BehaviorLogProbs[i], c.LogProbs[i])
		}
		trajectory.EndTurn(1)
		must.Do(t, trajectory.Validate())
		batch = append(batch, trajectory.Sample(1))
	}
	furthest := func(mode torch.Mode, how Pass) (most float64) {
		how.Temperature = 1
		torchtest.Do(t, mode, func(s *torch.Scope) {
			got := s.Read(p.Forward(s, rl.NewBatch(batch), how).LogProbs)
			for _, x := range batch {
				for i, want := range x.BehaviorLogProbs {
					most = max(most, math.Abs(float64(got[i]-want)))
				}
				got = got[x.Len():]
			}
		})
		return most
	}
	for _, mode := range []torch.Mode{torch.NoGrad, torch.Train} {
		expect.True(t, furthest(mode, Pass{}) < 1e-5, "log π differs by %g with the sampler's experts", furthest(mode, Pass{}))
		expect.True(t, furthest(mode, Pass{Checkpoint: true}) < 1e-5, "log π of blocks that are computed again differs by %g", furthest(mode, Pass{Checkpoint: true}))
	}
	torchtest.Do(t, torch.Train, func(s *torch.Scope) {
		expect.Equal(t, []int64{2, 5}, s.Shape(p.Forward(s, rl.NewBatch(batch), Pass{Temperature: 1, Load: true}).Load), "the load of experts")
	})
	for _, x := range batch {
		x.Routes = nil
	}
	expect.True(t, furthest(torch.NoGrad, Pass{}) > 1e-3, "the router does not decide otherwise: log π differs by %g", furthest(torch.NoGrad, Pass{}))
	for _, x := range batch {
		x.Routes = slices.Repeat(rl.Routes{0, 3}, len(x.Tokens)*width/2) // as nothing was sampled
	}
	expect.True(t, furthest(torch.NoGrad, Pass{}) > 1e-3, "other routes change nothing")
}
