package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// vocabulary has the tokens of the model and the added tokens.
type vocabulary struct {
	ids   map[string]int32
	base  int // entries of the model's vocabulary
	added []addedToken
	// at maps each added token to its index in added.
	at map[string]int
	// special are the ids of special tokens.
	special map[int32]bool
	// known reports, for each id up to the greatest, whether there is a token with it.
	known []bool
	texts []string // by id, "" if there is none
}

// maxID bounds ids, so that a wrong one cannot allocate gigabytes.
const maxID = 1 << 26

// newVocabulary adds the tokens of tokenizer.json and then missing ones that the settings name, as transformers does.
// New tokens get the ids after the last.
func newVocabulary(base map[string]int32, file []addedToken, c tokenizerConfig) (*vocabulary, error) {
	v := &vocabulary{ids: base, base: len(base), at: map[string]int{}, special: map[int32]bool{}}
	for _, token := range file {
		id := v.add(token)
		if id != token.ID && token.Content != "" {
			return nil, fmt.Errorf("added_tokens gives %q the id %d, but the tokens before it make it %d", token.Content, token.ID, id)
		}
	}
	for _, token := range c.declared {
		if id := v.add(token); id != token.ID && token.Content != "" {
			return nil, fmt.Errorf("tokenizer_config.json's added_tokens_decoder gives %q the id %d, but it is %d", token.Content, token.ID, id)
		}
	}
	for _, named := range c.named {
		v.addMissing(named.token)
	}
	for _, token := range c.extra {
		v.addMissing(token)
	}

	last := int32(-1)
	for token, id := range v.ids {
		if id < 0 || id >= maxID {
			return nil, fmt.Errorf("the token %q has the id %d, which is not between 0 and %d", token, id, maxID-1)
		}
		last = max(last, id)
	}
	v.known, v.texts = make([]bool, last+1), make([]string, last+1)
	for text, id := range v.ids {
		v.known[id], v.texts[id] = true, text
	}
	for _, token := range v.added {
		if token.Special {
			v.special[token.ID] = true
		}
	}
	return v, nil
}

// add makes token an added one, or replaces the added one with its text, and returns its id.
func (v *vocabulary) add(token addedToken) int32 {
	if token.Content == "" {
		return 0
	}
	id, ok := v.ids[token.Content]
	if !ok {
		id = int32(v.base)
		for _, other := range v.added {
			if other.ID >= id && other.ID < math.MaxInt32 {
				id = other.ID + 1
			}
		}
	}
	token.ID = id
	v.ids[token.Content] = id
	if i, ok := v.at[token.Content]; ok {
		v.added[i] = token
		return id
	}
	v.at[token.Content] = len(v.added)
	v.added = append(v.added, token)
	return id
}

// addMissing adds token if no added token has its text.
func (v *vocabulary) addMissing(token addedToken) {
	if _, ok := v.at[token.Content]; !ok {
		v.add(token)
	}
}

// parseVocab reads both forms of a vocabulary: token to id, or, for Unigram models, a list of [token, score] in the
// order of ids.
func parseVocab(raw json.RawMessage) (map[string]int32, error) {
	if !strings.HasPrefix(string(raw), "[") {
		var ids map[string]int32
		if err := json.Unmarshal(raw, &ids); err != nil {
			return nil, err
		}
		if ids == nil {
			return nil, errors.New("found null")
		}
		return ids, nil
	}
	var pieces [][2]any
	if err := json.Unmarshal(raw, &pieces); err != nil {
		return nil, err
	}
	ids := make(map[string]int32, len(pieces))
	for i, piece := range pieces {
		token, ok := piece[0].(string)
		if !ok {
			return nil, fmt.Errorf("piece %d has no text", i)
		}
		ids[token] = int32(i)
	}
	return ids, nil
}

// size is one more than the greatest id.
func (v *vocabulary) size() int { return len(v.known) }

// beyond returns the first token whose id is size or above.
func (v *vocabulary) beyond(size int) (token string, id int32, found bool) {
	i := slices.IndexFunc(v.texts[min(size, len(v.texts)):], func(text string) bool { return text != "" })
	if i < 0 {
		return "", 0, false
	}
	id = int32(size + i)
	return v.texts[id], id, true
}
