package policy_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// TestRewardModelOfLabels scores by the probability of a classifier's label, from a folder of rltrain and from one of
// transformers.
func TestRewardModelOfLabels(t *testing.T) {
	torchtest.NoLeaks(t)
	dir := policytest.Classifier(t, policytest.Encoder(t), transformers.PoolMean, "bad", "good")
	p := must.Open(policy.LoadClassifier(t.Context(), &hub.Client{}, dir, "", false))(t)
	m := must.Open(policy.LoadRewardModel(t.Context(), &hub.Client{}, dir+"#good"))(t)
	var sequences [][]int32
	for _, text := range []string{"the judge", "a"} {
		ids := must.Get(m.Encode(answered(text+"\n", " law ?")))(t)
		sequences = append(sequences, ids)
	}
	probs := must.Get(p.Probs(t.Context(), sequences))(t)
	scores, err := m.Scores(t.Context(), sequences)
	expect.Require(t, err == nil && len(scores) == 2, "%v %v", err, scores)
	for i := range scores {
		expect.True(t, math.Abs(scores[i]-float64(probs[i][1])) <= 1e-6, "text %d: score %v, P(good) %v", i, scores[i], probs[i][1])
	}
	expect.Failure(m.Encode(answered(strings.Repeat("the cat ", 6), "law")))(t, "12 tokens")
	for name, want := range map[string]string{
		dir:             `2 labels, "bad", "good", and no single score`,
		dir + "#better": `no label "better", only "bad", "good"`,
	} {
		expect.Failure(policy.LoadRewardModel(t.Context(), &hub.Client{}, name))(t, want)
	}
}

// TestRewardModelOfTransformers reads a sequence classifier saved by transformers.
func TestRewardModelOfTransformers(t *testing.T) {
	torchtest.NoLeaks(t)
	dir := policytest.Classifier(t, policytest.Encoder(t), transformers.PoolFamily, "LABEL_0")
	expect.Failure(policy.LoadClassifier(t.Context(), &hub.Client{}, dir, "", false))(t, "is a reward model")
	p := must.Open(policy.LoadRewardModel(t.Context(), &hub.Client{}, dir))(t)
	for folder, want := range map[string]bool{dir: true, t.TempDir(): false} {
		expect.Same(t, want, policy.IsRewardFolder(folder), "IsRewardFolder(%s)", folder)
	}
	merged := filepath.Join(t.TempDir(), "merged")
	must.Do(t, p.Merge(merged, ""))
	must.Do(t, os.Remove(filepath.Join(merged, "label_policy.json")))
	var scores [][]float64
	for _, name := range []string{dir, merged, merged + "#LABEL_0"} {
		m := must.Get(policy.LoadRewardModel(t.Context(), &hub.Client{}, name))(t)
		found, err := m.Scores(t.Context(), [][]int32{{0, 9, 8, 2}, {0, 7, 2}})
		m.Close()
		must.Do(t, err)
		scores = append(scores, found)
	}
	for i := range scores[0] {
		expect.True(t, math.Abs(scores[0][i]-scores[1][i]) <= 1e-5 && scores[1][i] == scores[2][i], "sequence %d: %v", i, scores)
	}
	expect.True(t, scores[0][0] != scores[0][1], "the scores of two texts are the same")
	expect.Failure(policy.LoadRewardModel(t.Context(), &hub.Client{}, merged+"#worse"))(t, `one output, "LABEL_0"`)
}

func answered(prompt, completion string) chat.Example {
	return chat.Example{Prompt: chat.Content{Text: prompt}, Completion: chat.Content{Text: completion}}
}

func TestRewardText(t *testing.T) {
	e := policy.Answered(envs.Completion{
		Observation: envs.Observation{Messages: []envs.Message{{Role: "system", Content: "Be brief. "}, {Role: "user", Content: "Well?"}, {Role: "assistant", Content: "I say "}}},
		Text:        "no.\n",
	})
	expect.Same(t, "system: Be brief.\n\nuser: Well?\n\nassistant: I say no.", policy.RewardText(e.Prompt, e.Completion), "RewardText")
	e = policy.Answered(envs.Completion{Observation: envs.Observation{Text: "Q: 1+1\n"}, Text: " 2"})
	expect.Same(t, "Q: 1+1\n\n2", policy.RewardText(e.Prompt, e.Completion), "RewardText")
}

// TestRewardModelOfALanguageModel reads the state of the last token, whatever the batch, and survives a round trip
// through its folder.
func TestRewardModelOfALanguageModel(t *testing.T) {
	torchtest.NoLeaks(t)
	base := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, policy.TinyModel(base, 2, 32, 3))
	m := must.Open(policy.NewRewardModel(policy.Config{Dir: base, R: 4, Alpha: 8, Seed: 5, MaxLength: 40}))(t)
	squares, n := 0.0, 0.0
	for _, g := range m.Groups() {
		for _, v := range g.Params {
			for _, w := range must.Get(v.Read())(t) {
				if g.Role == policy.Head {
					squares, n = squares+float64(w)*float64(w), n+1
				}
			}
		}
	}
	expect.True(t, n == 32 && math.Abs(squares-32./33) <= 0.7, "%v new weights of the score have a sum of squares of %v, want about 1", n, squares)
	for _, v := range m.Params() { // a trained adapter
		values := must.Get(v.Read())(t)
		for i := range values {
			values[i] += 0.01 * float32(i%7)
		}
		must.Do(t, v.Write(values))
	}
	var sequences [][]int32
	for _, answer := range []string{"a law", "a cat", ""} {
		ids := must.Get(m.Encode(answered("say something now: ", answer)))(t)
		expect.Same(t, 1, ids[len(ids)-1], "%q does not end with the token that ends a text: %v", answer, ids)
		sequences = append(sequences, ids)
	}
	together := must.Get(m.Scores(t.Context(), sequences))(t)
	dir := t.TempDir()
	must.Do(t, m.Save(dir))
	loaded := must.Open(policy.LoadRewardModel(t.Context(), &hub.Client{}, dir))(t)
	merged := filepath.Join(t.TempDir(), "merged")
	must.Do(t, loaded.Merge(merged, ""))
	expect.True(t, policy.IsRewardFolder(merged), "the merged folder is no reward model's")
	full := must.Open(policy.LoadRewardModel(t.Context(), &hub.Client{}, merged))(t)
	scores, err := full.Scores(t.Context(), sequences)
	expect.Require(t, err == nil && full.MaxLength == m.MaxLength, "%v %v", err, full.MaxLength)
	for i, score := range scores {
		expect.True(t, math.Abs(score-together[i]) <= 1e-5, "answer %d: the merged model scores %v, the adapter %v", i, score, together[i])
	}
	for i, ids := range sequences {
		alone := must.Get(loaded.Scores(t.Context(), [][]int32{ids}))(t)
		other := must.Get(m.Scores(t.Context(), [][]int32{append(append([]int32(nil), ids[:len(ids)-1]...), 7)}))(t)
		expect.True(t, math.Abs(alone[0]-together[i]) <= 1e-5 && math.Abs(other[0]-together[i]) >= 1e-4,
			"answer %d: score %v, unbatched and reloaded %v, with another last token %v", i, together[i], alone[0], other[0])
	}
	expect.Failure(m.Encode(answered(strings.Repeat("x", 50), "y")))(t, "longer than the 40 tokens")
}
