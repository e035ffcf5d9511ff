package policy

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rltrain/envs/chat"
	"rltrain/rl/report"
	"rltrain/torch"
	"rltrain/torch/hub"
	"rltrain/torch/torchtest"
	"rltrain/torch/transformers"
	template "rltrain/torch/transformers/chat"
)

// tinyPolicy is a policy on a small character-level model, closed at the test's end.
func tinyPolicy(t *testing.T, c TokenConfig) *Token {
	t.Helper()
	c.Dir = filepath.Join(t.TempDir(), "tiny")
	if err := TinyModel(c.Dir, 2, 32, 7); err != nil {
		t.Fatal(err)
	}
	p, err := NewToken(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
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

// copies teaches to repeat a letter.
func copies(t *testing.T, p *Token) []Sequence {
	t.Helper()
	var examples []chat.Example
	for i := range 26 {
		letter := string(rune('a' + i))
		examples = append(examples, completionOf(letter+":", letter))
	}
	encoded, err := p.Encode(examplesOf(examples...), EncodeOptions{CompletionOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	return encoded.Sequences
}

func TestEncodeTrainsTheCompletionAndTheEnd(t *testing.T) {
	p := tinyPolicy(t, TokenConfig{})
	for _, c := range []struct {
		name    string
		example chat.Example
		options EncodeOptions
		labels  string // of "ab:cd" and the end, 1 where trained
		cut     int
		dropped int
	}{
		{"completion", completionOf("ab:", "cd"), EncodeOptions{CompletionOnly: true}, "000111", 0, 0},
		{"all", completionOf("ab:", "cd"), EncodeOptions{}, "011111", 0, 0},
		{"text", chat.Example{Format: chat.LanguageModelling, Text: chat.Content{Text: "ab:cd"}}, EncodeOptions{CompletionOnly: true}, "011111", 0, 0},
		{"cut", completionOf("ab:", "cd"), EncodeOptions{CompletionOnly: true, MaxLength: 4}, "0001", 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := p.Encode(examplesOf(c.example), c.options)
			if err != nil {
				t.Fatal(err)
			}
			labels := ""
			for _, label := range got.Sequences[0].Labels {
				labels += map[bool]string{false: "0", true: "1"}[label]
			}
			if labels != c.labels || got.Cut != c.cut {
				t.Errorf("labels %s, %d cut; want %s, %d", labels, got.Cut, c.labels, c.cut)
			}
			if ids := got.Sequences[0].IDs; c.cut == 0 && ids[len(ids)-1] != p.EOS()[0] {
				t.Errorf("%v does not end with the end token %d", ids, p.EOS()[0])
			}
		})
	}
	mixed, err := p.Encode(examplesOf(completionOf("abcdef", "g"), completionOf("a", "b")), EncodeOptions{CompletionOnly: true, MaxLength: 4})
	if err != nil || mixed.Dropped != 1 || len(mixed.Sequences) != 1 {
		t.Errorf("%d dropped, %d kept, error %v; want 1 and 1", mixed.Dropped, len(mixed.Sequences), err)
	}
	if _, err := p.Encode(examplesOf(completionOf("abcdef", "g")), EncodeOptions{CompletionOnly: true, MaxLength: 4}); err == nil {
		t.Error("a data set without a label is accepted")
	}
	if _, err := p.Encode(examplesOf(conversationOf("user", "x")), EncodeOptions{}); err == nil {
		t.Error("messages are accepted without a chat template")
	}
}

// conversationOf is an example of messages: role, content, role, content.
func conversationOf(turns ...string) chat.Example {
	e := chat.Example{File: "f", Line: 3, Format: chat.LanguageModelling}
	for i := 0; i < len(turns); i += 2 {
		e.Text.Messages = append(e.Text.Messages, chat.Message{{Name: "role", Value: turns[i]}, {Name: "content", Value: turns[i+1]}})
	}
	return e
}

// A text that ends with the end token has one, not two.
func TestEncodeEndsOnce(t *testing.T) {
	p := tinyPolicy(t, TokenPolicyConfig{})
	text := func(s string) chat.Example {
		return chat.Example{Format: chat.LanguageModelling, Text: chat.Content{Text: s}}
	}
	got, err := p.Encode(examplesOf(text("ab"), text("ab<eos>"), completionOf("a", "b<eos>"), completionOf("a", "b")), EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, q := range got.Sequences {
		if !slices.Equal(q.IDs, got.Sequences[0].IDs) || !slices.Equal(q.Labels, []bool{false, true, true}) {
			t.Errorf("row %d: %v %v, want %v and all but the first trained", i+1, q.IDs, q.Labels, got.Sequences[0].IDs)
		}
	}
}

// What the assistant says is trained, whether its template marks it or not.
func TestEncodeAssistantOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tiny")
	if err := TinyChatModel(dir, 1, 32, 7); err != nil {
		t.Fatal(err)
	}
	p, err := NewToken(TokenPolicyConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	bare, err := template.Parse("bare", "{% for m in messages %}{{ m.role + ': ' + m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}")
	if err != nil {
		t.Fatal(err)
	}
	marked := p.Templates
	for _, tt := range []struct {
		templates *template.Templates
		want      string
	}{{marked, "yo<eos>ok<eos>"}, {bare, "yo<eos>\nok<eos>\n"}} {
		p.Templates = tt.templates
		got, err := p.Encode(examplesOf(conversationOf("user", "hi", "assistant", "yo", "user", "so", "assistant", "ok")), EncodeOptions{AssistantOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		var trained []int32
		for i, label := range got.Sequences[0].Labels {
			if label {
				trained = append(trained, got.Sequences[0].IDs[i])
			}
		}
		if text, err := p.Tokenizer.Decode(trained, false); text != tt.want || err != nil {
			t.Errorf("%q is trained, want %q; %v", text, tt.want, err)
		}
	}
}

// gradients are those of one batch, divided as limit says.
func gradients(t *testing.T, p *Token, sequences []Sequence, limit int, checkpoint bool) [][]float32 {
	t.Helper()
	labels := 0
	ids := make([][]int32, len(sequences))
	for i, q := range sequences {
		labels += q.labels()
		ids[i] = q.IDs
	}
	for _, part := range microBatches(ids, limit) {
		if err := torch.Do(torch.Train, func(s *torch.Scope) error {
			out := p.score(s, sequences[part[0]:part[1]], torch.Pass{Adapter: true, Checkpoint: checkpoint}, 1)
			s.Backward(s.Scale(s.Sum(out.logProbs), -1/float64(labels)))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	var grads [][]float32
	if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		for _, v := range p.Params() {
			g, ok := s.Grad(v)
			if !ok {
				return errors.New("a parameter has no gradient")
			}
			grads = append(grads, s.Read(g))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := torch.ZeroGrad(p.Params()); err != nil {
		t.Fatal(err)
	}
	return grads
}

func TestGradientsDoNotDependOnTheDivisionOfABatch(t *testing.T) {
	for _, tuning := range []string{"lora", "full"} {
		t.Run(tuning, func(t *testing.T) {
			c := TokenConfig{Full: tuning == "full"}
			if !c.Full {
				c.R, c.Alpha = 4, 8
			}
			p := tinyPolicy(t, c)
			sequences := copies(t, p)[:8]
			sequences[3] = Sequence{IDs: append(sequences[3].IDs, 7, 8, 9), Labels: append(sequences[3].Labels, true, false, true)}
			for i := range int32(4) { // these share what they begin with
				sequences = append(sequences, Sequence{
					IDs:    append([]int32{3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 20+i, 30-i, 9)[:11+(i+1)%3],
					Labels: append(make([]bool, 10), true, false, i%2 == 0)[:11+(i+1)%3],
				})
			}
			want := gradients(t, p, sequences, 0, false)
			for _, limit := range []int{1, 8, 16, 32} {
				for _, checkpoint := range []bool{false, true} {
					got := gradients(t, p, sequences, limit, checkpoint)
					for i := range want {
						if d := relative(got[i], want[i]); d > 1e-5 {
							t.Errorf("parts of %d tokens, checkpointing %t: gradient %d differs by %.1e", limit, checkpoint, i, d)
						}
					}
				}
			}
		})
	}
}

func TestAnswersShareTheirPrompt(t *testing.T) {
	p := tinyPolicy(t, TokenConfig{R: 4, Alpha: 8})
	prompt := []int32{3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	ids := [][]int32{append(prompt[:10:10], 20, 21), append(prompt[:10:10], 30, 31, 32), {40, 41, 42}}
	rows, targets := []int64{9, 10, 21, 22, 23, 25, 26}, []int64{20, 21, 30, 31, 32, 41, 42}
	packed, _ := p.pack(ids, rows, torch.Pass{})
	if n := len(packed.Tokens); n != 15 {
		t.Errorf("%d tokens are computed, want 10 of the prompt and 5 others: nothing is read off the last ones", n)
	}
	if packed, _ := p.pack(ids, rows, torch.Pass{Dropout: torch.Dropout{P: 0.1}}); len(packed.Tokens) != 25 {
		t.Errorf("with dropout %d tokens are computed, want 25: each answer drops features of its own", len(packed.Tokens))
	}
	score := func(ids [][]int32, rows, targets []int64) (logProbs []float32) {
		t.Helper()
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			logProbs = s.Read(p.scoreRows(s, ids, rows, targets, torch.Pass{Adapter: true}, 1).logProbs)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return logProbs
	}
	together := score(ids, rows, targets)
	// Alone, every last token is read too, so that none is left out.
	alone := slices.Concat(score(ids[:1], []int64{9, 10, 11}, []int64{20, 21, 0})[:2], score(ids[1:2], []int64{9, 10, 11, 12}, []int64{30, 31, 32, 0})[:3], score(ids[2:], []int64{0, 1, 2}, []int64{41, 42, 0})[:2])
	if d := relative(together, alone); d > 1e-6 {
		t.Errorf("log-probabilities differ by %.1e from those of each sequence alone", d)
	}
	slices.Reverse(rows)
	slices.Reverse(targets)
	backwards := score(ids, rows, targets)
	slices.Reverse(backwards)
	if diff := cmp.Diff(together, backwards); diff != "" {
		t.Errorf("read from the last to the first (-want +got):\n%s", diff)
	}
}

func relative(got, want []float32) float64 {
	var diff, norm float64
	for i := range want {
		d := float64(got[i] - want[i])
		diff, norm = diff+d*d, norm+float64(want[i])*float64(want[i])
	}
	if norm == 0 {
		return math.Sqrt(diff)
	}
	return math.Sqrt(diff / norm)
}

var quickSFT = TokenSFTConfig{Epochs: 40, BatchSize: 26, LearningRate: 1e-2, Schedule: "constant", MaxGradNorm: 1, Seed: 3}

func TestTokenSFTLearnsAndGeneratesWhatItLearned(t *testing.T) {
	torchtest.NoLeaks(t)
	p := tinyPolicy(t, TokenConfig{Full: true})
	sequences := copies(t, p)
	result, err := TokenSFT(t.Context(), p, sequences, sequences, quickSFT, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	if result.Best.Loss > 0.05 || result.Best.Accuracy < 0.99 {
		t.Errorf("loss %.3f, accuracy %.3f after %d updates", result.Best.Loss, result.Best.Accuracy, result.Updates)
	}
	dir := t.TempDir()
	if err := p.Save(dir); err != nil {
		t.Fatal(err)
	}
	loaded, err := LoadToken(t.Context(), &hub.Client{}, dir, "", "", false)
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	sampler, err := loaded.NewSampler(4)
	if err != nil {
		t.Fatal(err)
	}
	defer sampler.Close()
	var prompts, completions [][]int32
	for _, letter := range []string{"a", "q", "z"} {
		ids, err := loaded.Prompt(chat.Content{Text: letter + ":"})
		if err != nil {
			t.Fatal(err)
		}
		prompts = append(prompts, ids)
	}
	var texts []string
	var logProbs [][]float32
	if err := sampler.Generate(t.Context(), prompts, GenerateOptions{Samples: 1, MaxNew: 4, Adapter: true}, func(_ int, c []Completion) error {
		texts, completions, logProbs = append(texts, c[0].Text+" "+string(c[0].Reason)), append(completions, c[0].IDs), append(logProbs, c[0].LogProbs)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a stop", "q stop", "z stop"}, texts); diff != "" {
		t.Errorf("completions (-want +got):\n%s", diff)
	}
	scored, err := loaded.Score(t.Context(), prompts, completions)
	if err != nil {
		t.Fatal(err)
	}
	for i := range scored {
		for j, got := range scored[i].LogProbs {
			if math.Abs(float64(got-logProbs[i][j])) > 1e-4 {
				t.Errorf("token %d of completion %d: scored %v, sampled with %v", j, i, got, logProbs[i][j])
			}
			if scored[i].Rank[j] != 0 {
				t.Errorf("token %d of completion %d has rank %d", j, i, scored[i].Rank[j])
			}
		}
	}
}

func TestGenerateStopsAtStringsAndTellsFinalText(t *testing.T) {
	p := tinyPolicy(t, TokenConfig{Full: true})
	if _, err := TokenSFT(t.Context(), p, copies(t, p), nil, quickSFT, Hooks{}); err != nil {
		t.Fatal(err)
	}
	sampler, err := p.NewSampler(2)
	if err != nil {
		t.Fatal(err)
	}
	defer sampler.Close()
	prompt, err := p.Prompt(chat.Content{Text: "k:"})
	if err != nil {
		t.Fatal(err)
	}
	told := ""
	o := GenerateOptions{Samples: 1, MaxNew: 4, Adapter: true, Stop: []string{"k"}, OnText: func(_, _ int, text string) { told += text }}
	if err := sampler.Generate(t.Context(), [][]int32{prompt}, o, func(_ int, c []Completion) error {
		if c[0].Text != "" || c[0].Reason != torch.ReasonStop || len(c[0].IDs) != 1 || told != "" {
			t.Errorf("got %+v and told %q", c[0], told)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestTokenSFTResumesAsIfItHadNotStopped(t *testing.T) {
	for _, tuning := range []string{"lora", "full"} {
		t.Run(tuning, func(t *testing.T) {
			config := TokenConfig{Full: tuning == "full"}
			if !config.Full {
				config.R, config.Alpha, config.Dropout = 4, 8, 0.1
			}
			c := quickSFT
			c.Epochs, c.BatchSize, c.Packing = 3, 2, 16
			run := func(p *Token, h Hooks, ctx context.Context) (string, error) {
				rows := ""
				h.Row = func(r report.Row) error {
					rows += fmt.Sprintln(r)
					return nil
				}
				sequences := copies(t, p)
				_, err := TokenSFT(ctx, p, sequences, sequences[:5], c, h)
				return rows, err
			}
			whole := tinyPolicy(t, config)
			want, err := run(whole, Hooks{}, t.Context())
			if err != nil {
				t.Fatal(err)
			}

			dir := t.TempDir()
			ctx, stop := context.WithCancel(t.Context())
			stopAt := 4
			hooks := Hooks{
				Progress: func(done, _ int, _ string) {
					if done == stopAt {
						stop()
					}
				},
				Save: func(_ int, write func(dir string) error) error { return write(dir) },
			}
			first, err := run(tinyPolicy(t, config), hooks, ctx)
			if !errors.Is(err, ErrStopped) {
				t.Fatalf("stopping: %v", err)
			}
			resumed := tinyPolicy(t, config)
			rest, err := run(resumed, Hooks{Resume: dir}, t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, first+rest); diff != "" {
				t.Errorf("metrics (-whole +resumed):\n%s", diff)
			}
			a, err := takeSnapshot(whole)
			if err != nil {
				t.Fatal(err)
			}
			b, err := takeSnapshot(resumed)
			if err != nil {
				t.Fatal(err)
			}
			if !cmp.Equal(a, b) {
				t.Error("the weights differ")
			}
		})
	}
}

func TestAdapterFolderAndMergedFolderSayTheSame(t *testing.T) {
	p := tinyPolicy(t, TokenConfig{R: 4, Alpha: 8})
	sequences := copies(t, p)
	c := quickSFT
	c.Epochs = 5
	if _, err := TokenSFT(t.Context(), p, sequences, nil, c, Hooks{}); err != nil {
		t.Fatal(err)
	}
	want, err := p.Validate(sequences)
	if err != nil {
		t.Fatal(err)
	}
	adapter, merged := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "m")
	if err := p.Save(adapter); err != nil {
		t.Fatal(err)
	}
	if err := p.Merge(merged, ""); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{adapter, merged} {
		loaded, err := LoadToken(t.Context(), &hub.Client{}, dir, "", "", false)
		if err != nil {
			t.Fatal(err)
		}
		got, err := loaded.Validate(sequences)
		loaded.Close()
		if err != nil || math.Abs(got.Loss-want.Loss) > 1e-5 {
			t.Errorf("%s: loss %v, error %v; want %v", filepath.Base(dir), got.Loss, err, want.Loss)
		}
	}
}

// TestRandomToken: the step that benchmarks repeat learns its sequences, checkpointed or not, on weights of
// either dtype.
func TestRandomToken(t *testing.T) {
	torchtest.NoLeaks(t)
	shape := transformers.LlamaShape{Vocab: 40, Hidden: 32, Layers: 2, Heads: 4, KVHeads: 2, Intermediate: 48, RopeTheta: 1e4}
	for _, dtype := range []torch.DType{torch.F32, torch.BF16} {
		p, err := RandomToken(shape, dtype, TokenConfig{R: 4, Alpha: 8, Targets: []string{"q_proj", "down_proj"}, Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		// q is 32 by 32, down 48 to 32.
		if _, trainable := p.Parameters(); trainable != 2*4*(32+32+48+32) {
			t.Errorf("%d trainable weights", trainable)
		}
		sequences := []Sequence{
			{IDs: []int32{3, 9, 27, 4}, Labels: []bool{false, true, true, true}},
			{IDs: []int32{5, 6}, Labels: []bool{false, true}},
		}
		before, err := p.Validate(sequences)
		if err != nil {
			t.Fatal(err)
		}
		for _, checkpoint := range []bool{false, true} {
			update, end, err := BenchTokenSFT(p, sequences, checkpoint)
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				if err := update(); err != nil {
					t.Fatal(err)
				}
			}
			end()
		}
		after, err := p.Validate(sequences)
		if err != nil {
			t.Fatal(err)
		}
		if before.Labels != 4 || after.Loss >= before.Loss {
			t.Errorf("%v: loss %g over %d labels, then %g", dtype, before.Loss, before.Labels, after.Loss)
		}
	}
}
