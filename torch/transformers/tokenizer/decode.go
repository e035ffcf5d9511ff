package tokenizer

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// byteTokens are the tokens for single bytes that decoding must know.
type byteTokens struct {
	// fallback are the tokens <0x00> to <0xFF> of a tokenizer with byte fallback.
	fallback map[int32]bool
	// nul are the tokens whose text has a NUL byte, which the library cannot return. It gets invalid in their place, a
	// token that is never part of valid UTF-8; -1 if there is none.
	nul     map[int32]bool
	invalid int32
	// level: text is bytes, so that parts of it can be decoded one by one.
	level bool
}

func findByteTokens(v *vocabulary, decoder any) byteTokens {
	b := byteTokens{fallback: map[int32]bool{}, nul: map[int32]bool{}, invalid: -1}
	byteLevel, fallback := hasType(decoder, "ByteLevel"), hasType(decoder, "ByteFallback")
	b.level = byteLevel
	for token, id := range v.ids {
		isByte := fallback && len(token) == 6 && strings.HasPrefix(token, "<0x") && strings.HasSuffix(token, ">") &&
			strings.Trim(token[3:5], "0123456789abcdefABCDEF") == ""
		switch {
		case isByte:
			b.fallback[id] = true
			if token == "<0x00>" {
				b.nul[id] = true
			}
			if strings.EqualFold(token, "<0xFF>") {
				b.invalid = id
			}
		case strings.ContainsRune(token, 0), byteLevel && strings.ContainsRune(token, 'Ā'): // how byte 0 is written
			b.nul[id] = true
		case byteLevel && token == "ÿ": // byte 255
			b.invalid = id
		}
	}
	return b
}

// hasType reports whether a part of tokenizer.json has this type or contains a part that has.
func hasType(part any, name string) bool {
	switch p := part.(type) {
	case map[string]any:
		return p["type"] == name || hasType(p["decoders"], name)
	case []any:
		for _, one := range p {
			if hasType(one, name) {
				return true
			}
		}
	}
	return false
}

// Decode returns the text of ids, as the decoder of tokenizer.json makes it; with skipSpecial, without special tokens.
// It does not apply clean_up_tokenization_spaces. Bytes that are not valid UTF-8 become U+FFFD, as does a token with a
// NUL byte. An unknown id is an error.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) (string, error) {
	out := make([]uint32, 0, len(ids))
	for _, id := range ids {
		if err := t.checkID(id); err != nil {
			return "", err
		}
		if !skipSpecial || !t.vocab.special[id] {
			out = append(out, uint32(id))
		}
	}
	return t.decode(out)
}

// byteAlphabet returns the bytes by the characters that stand for them in byte-level tokens (Radford et al. 2019):
// printable characters of Latin-1 for themselves, U+0100 and later for the others.
var byteAlphabet = sync.OnceValue(func() map[rune]byte {
	bytes, next := map[rune]byte{}, rune(0x100)
	for b := range 256 {
		if b > ' ' && b < 0x7f || b > 0xa0 && b != 0xad {
			bytes[rune(b)] = byte(b)
			continue
		}
		bytes[next] = byte(b)
		next++
	}
	return bytes
})

// TokenBytes returns the bytes that a token stands for, which may be part of a character. An unknown id is an error.
func (t *Tokenizer) TokenBytes(id int32) ([]byte, error) {
	if err := t.checkID(id); err != nil {
		return nil, err
	}
	text := t.vocab.texts[id]
	_, added := t.vocab.at[text]
	switch {
	case added:
		return []byte(text), nil
	case t.bytes.fallback[id]:
		return hex.DecodeString(text[3:5])
	case t.bytes.level:
		var out []byte
		for _, r := range text {
			b, known := byteAlphabet()[r]
			if !known {
				return []byte(text), nil
			}
			out = append(out, b)
		}
		return out, nil
	case strings.Contains(text, "▁"):
		return []byte(strings.ReplaceAll(text, "▁", " ")), nil
	}
	text, err := t.decode([]uint32{uint32(id)})
	return []byte(text), err
}

func (t *Tokenizer) checkID(id int32) error {
	if id < 0 || int(id) >= len(t.vocab.known) || !t.vocab.known[id] {
		return fmt.Errorf("transformers: no token has the id %d; the greatest is %d", id, len(t.vocab.known)-1)
	}
	return nil
}

// decode returns the text of ids; it may change ids.
func (t *Tokenizer) decode(ids []uint32) (string, error) {
	for i, id := range ids {
		if !t.bytes.nul[int32(id)] {
			continue
		}
		if t.bytes.invalid < 0 && t.bytes.level {
			before, err := t.decode(ids[:i])
			if err != nil {
				return "", err
			}
			after, err := t.decode(ids[i+1:])
			return before + replacement + after, err
		}
		if t.bytes.invalid < 0 {
			return "", fmt.Errorf("transformers: the text of token %d has a NUL byte", id)
		}
		ids[i] = uint32(t.bytes.invalid)
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.tk == nil {
		return "", errors.New("transformers: the tokenizer is closed")
	}
	return t.tk.Decode(ids, false), nil
}

// Decoder turns a stream of ids into text. The concatenated results of Push and Flush equal Decode of all ids.
//
// The text that a token adds depends on the tokens before it (a space, the rest of a character). Decoder decodes a
// window of tokens with and without the new ones; the difference is the added text.
type Decoder struct {
	t           *Tokenizer
	skipSpecial bool
	window      []uint32
	old         int    // tokens of the window whose text has been returned
	text        string // of those tokens
}

// NewDecoder returns a decoder for a new text.
func (t *Tokenizer) NewDecoder(skipSpecial bool) *Decoder {
	return &Decoder{t: t, skipSpecial: skipSpecial}
}

const replacement = "\uFFFD"

// Push adds an id and returns the text that is final. It returns "" while a character or a run of byte tokens is
// incomplete. An unknown id is an error and is not added.
func (d *Decoder) Push(id int32) (string, error) {
	if err := d.t.checkID(id); err != nil {
		return "", err
	}
	if d.skipSpecial && d.t.vocab.special[id] {
		return "", nil
	}
	d.window = append(d.window, uint32(id))
	// Byte tokens are decoded as one run: one that is invalid undoes those before it.
	if d.t.bytes.fallback[id] {
		return "", nil
	}
	text, err := d.t.decode(append([]uint32(nil), d.window...))
	if err != nil || strings.HasSuffix(text, replacement) || len(text) <= len(d.text) || !strings.HasPrefix(text, d.text) {
		return "", err
	}
	added := text[len(d.text):]
	d.window = append(d.window[:0], d.window[d.old:]...)
	d.old = len(d.window)
	d.text, err = d.t.decode(append([]uint32(nil), d.window...))
	return added, err
}

// Flush returns the text that Push has held back and starts a new text.
func (d *Decoder) Flush() (string, error) {
	text, err := d.t.decode(d.window)
	added := strings.TrimPrefix(text, d.text)
	*d = Decoder{t: d.t, skipSpecial: d.skipSpecial}
	return added, err
}
