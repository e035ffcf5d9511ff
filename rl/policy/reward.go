package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rltrain/envs"
	"rltrain/envs/chat"
	"rltrain/internal/words"
	"rltrain/rl"
	"rltrain/torch"
	"rltrain/torch/hub"
	"rltrain/torch/transformers"
)

// RewardModel gives a prompt with an answer a number: the one output of a reward model as it is, or the probability of
// one of several labels.
type RewardModel struct {
	policy *Label
	class  int // of several; -1 for the one output
}

// LoadRewardModel loads a folder or a name on the hub as LoadLabel does, or the folder of a sequence classifier of
// transformers. name#LABEL chooses one of several labels.
func LoadRewardModel(ctx context.Context, client *hub.Client, name string) (*RewardModel, error) {
	label := ""
	if at := strings.LastIndexByte(name, '#'); at >= 0 {
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			name, label = name[:at], name[at+1:]
		}
	}
	p, err := loadClassifier(ctx, client, name)
	if err != nil {
		return nil, err
	}
	m := &RewardModel{policy: p, class: -1}
	switch several := len(p.Labels) > 1; {
	case several && label == "":
		err = fmt.Errorf("%s has %d labels, %s, and no single score: name the one whose probability counts, as %s#%s",
			name, len(p.Labels), words.List(p.Labels), name, p.Labels[len(p.Labels)-1])
	case several:
		if m.class = slices.Index(p.Labels, label); m.class < 0 {
			err = fmt.Errorf("%s has no label %q, only %s", name, label, words.List(p.Labels))
		}
	case label != "" && label != p.Labels[0]:
		err = fmt.Errorf("%s has one output, %q, and no label %q", name, p.Labels[0], label)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return m, nil
}

// loadClassifier is LoadLabel that knows the classifiers of transformers too, whose labels are those of config.json.
func loadClassifier(ctx context.Context, client *hub.Client, name string) (*Label, error) {
	found, err := client.Model(ctx, name, hub.Weights)
	if err != nil {
		return nil, err
	}
	if IsLabelFolder(found.Dir) {
		p, err := ReadLabelFolder(found.Dir)
		if err != nil {
			return nil, err
		}
		return p, p.loaded(ctx, client, found.Dir)
	}
	config, err := transformers.LoadConfig(found.Dir)
	if err != nil {
		return nil, err
	}
	p := &Label{Labels: config.ID2Label, Pooling: transformers.PoolFamily, MaxLength: config.MaxLength(), dir: found.Dir}
	for i := len(p.Labels); i < config.NumLabels; i++ {
		p.Labels = append(p.Labels, fmt.Sprintf("LABEL_%d", i))
	}
	return p, p.loaded(ctx, client, found.Dir)
}

// Close frees the model.
func (m *RewardModel) Close() { m.policy.Close() }

// Merge writes one full model without an adapter, as Label.Merge does.
func (m *RewardModel) Merge(dir string) error { return m.policy.Merge(dir) }

// Encode is the tokens of a prompt with an answer, as RewardText writes them. One that is longer than the model reads is
// an error: cut, it would be judged for something else.
func (m *RewardModel) Encode(prompt, answer chat.Content) ([]int32, error) {
	ids, cut, err := m.policy.EncodeText(RewardText(prompt, answer))
	if err == nil && cut {
		err = fmt.Errorf("prompt and answer are longer than the %d tokens that the reward model reads", m.policy.MaxLength)
	}
	return ids, err
}

// RewardText is what an encoder reads of a prompt with an answer: the prompt, of a conversation each message behind its
// role, an empty line, and the answer.
func RewardText(prompt, answer chat.Content) string {
	var parts []string
	for _, c := range []chat.Content{prompt, answer} {
		if text := strings.TrimSpace(c.Text); text != "" {
			parts = append(parts, text)
		}
		for _, message := range c.Messages {
			parts = append(parts, message.Role()+": "+strings.TrimSpace(message.Text()))
		}
	}
	return strings.Join(parts, "\n\n")
}

// Scores are the rewards of sequences that Encode made, in order. It stops early with ctx's error.
func (m *RewardModel) Scores(ctx context.Context, sequences [][]int32) ([]float64, error) {
	p := m.policy
	classes := len(p.Labels)
	all := make([]float64, 0, len(sequences))
	for _, part := range rl.MicroBatches(len(sequences), predictTokens, func(i int) int { return len(sequences[i]) }) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if part[0] == part[1] {
			break
		}
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			z := p.features(s, sequences[part[0]:part[1]], torch.Pass{Adapter: true})
			if m.class < 0 {
				for _, score := range s.Read(p.logits(s, z)) {
					all = append(all, float64(score))
				}
				return nil
			}
			logProbs := s.Read(p.logProbs(s, z))
			for i := range part[1] - part[0] {
				all = append(all, math.Exp(float64(logProbs[i*classes+m.class])))
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("scoring with %s: %w", filepath.Base(p.dir), err)
		}
	}
	return all, nil
}

// Judged is the prompt and the answer of a finished completion.
func Judged(c envs.Completion) (prompt, answer chat.Content) {
	if c.Observation.Messages == nil {
		return chat.Content{Text: c.Observation.Text}, chat.Content{Text: c.Text}
	}
	messages, text := c.Observation.Messages, c.Text
	if last := len(messages) - 1; messages[last].Role == envs.RoleAssistant { // the answer goes on from it
		messages, text = messages[:last], messages[last].Content+text
	}
	return chat.Content{Messages: Conversation(messages)}, chat.Content{Messages: Conversation([]envs.Message{{Role: envs.RoleAssistant, Content: text}})}
}
