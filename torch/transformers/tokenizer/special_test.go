package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
)

// change copies a folder of testdata with changed fields in its files; null stays null.
func change(t testing.TB, dir string, files map[string]map[string]any) string {
	t.Helper()
	out := map[string]string{}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data := must.Get(os.ReadFile(filepath.Join("testdata", dir, name)))(t)
		out[name] = string(data)
	}
	for name, fields := range files {
		whole := map[string]any{}
		if text, ok := out[name]; ok {
			must.Do(t, json.Unmarshal([]byte(text), &whole))
		}
		for k, v := range fields {
			whole[k] = v
		}
		data := must.Get(json.Marshal(whole))(t)
		out[name] = string(data)
	}
	return must.Folder(t, out)
}

func config(fields map[string]any) map[string]map[string]any {
	return map[string]map[string]any{"tokenizer_config.json": fields}
}

// transformers prints, for the same folders, which token each name refers to and the ids of tokens that tokenizer.json
// lacks.
func TestSpecialTokens(t *testing.T) {
	map4 := map[string]any{"bos_token": map[string]any{"content": "<c>", "special": true}, "eos_token": "<d>"}
	for _, tt := range []struct {
		name  string
		dir   string
		named map[string]string
		added map[string]int32
	}{
		{"file", "testdata/bytes", map[string]string{"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": "<|endoftext|>"},
			map[string]int32{"<|endoftext|>": 0, "<|im_start|>": 1, "<tool>": 330, "<|im_end|>": 331, "<|extra|>": 332}},
		{"objects", "testdata/fallback", map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, map[string]int32{"<unk>": 0, "<s>": 1, "</s>": 2}},
		{"padding names pad_token", change(t, "wordpiece", config(map[string]any{"pad_token": nil, "bos_token": "<b>", "image_token": "<img>", "extra_special_tokens": []any{"<e1>", "law"},
			"additional_special_tokens": []any{"<q>"}})),
			map[string]string{"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]", "bos_token": "<b>", "image_token": "<img>"},
			map[string]int32{"<b>": 34, "<img>": 35, "<e1>": 36, "law": 6}},
		{"special_tokens_map.json", change(t, "characters", map[string]map[string]any{"special_tokens_map.json": map4,
			"tokenizer_config.json": {"extra_special_tokens": map[string]any{"audio_token": "<aud>"}}}),
			map[string]string{"bos_token": "<c>", "eos_token": "<d>", "pad_token": "<pad>", "unk_token": "?", "audio_token": "<aud>"}, map[string]int32{"<c>": 21, "<d>": 22, "<aud>": 23}},
		{"special_tokens_map.json beside added_tokens_decoder", change(t, "fallback", map[string]map[string]any{"special_tokens_map.json": map4}),
			map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tok := load(t, tt.dir)
			expect.Equal(t, tt.named, tok.Special())
			for token, want := range tt.added {
				ids, err := tok.EncodeRaw(token, false)
				id, ok := tok.TokenID(token)
				expect.True(t, ok && id == want && err == nil && cmp.Equal([]int32{want}, ids), "%s is %d, %t, and encoded as %v, %v; want %d", token, id, ok, ids, err, want)
			}
			if id, ok := tok.SpecialID("eos_token"); tt.named["eos_token"] != "" && (!ok || id != tok.vocab.ids[tt.named["eos_token"]]) {
				t.Errorf("eos_token is %d, %t", id, ok)
			}
			_, ok := tok.SpecialID("nope_token")
			expect.True(t, !ok, "there is a nope_token")
		})
	}
}

func TestSpecialTokensRefused(t *testing.T) {
	added := func(id int, content string) map[string]any {
		return map[string]any{"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
	}
	tests := []struct {
		name, dir, want string
	}{
		{"number", change(t, "characters", config(map[string]any{"eos_token": 3})), "eos_token is 3"},
		{"no content", change(t, "characters", config(map[string]any{"eos_token": map[string]any{"lstrip": true}})), "eos_token: the token has no content"},
		{"bad extra", change(t, "characters", config(map[string]any{"extra_special_tokens": []any{1}})), "entry 0 is 1"},
		{"bad extra object", change(t, "characters", config(map[string]any{"extra_special_tokens": map[string]any{"x": 1}})), "x is 1"},
		{"bad decoder", change(t, "characters", config(map[string]any{"added_tokens_decoder": map[string]any{"x": added(1, "a")}})), `"x" is not an id`},
		{"id of a decoder", change(t, "characters", config(map[string]any{"added_tokens_decoder": map[string]any{"40": added(40, "<far>")}})), `gives "<far>" the id 40, but it is 21`},
		{"id of the file", change(t, "characters", map[string]map[string]any{"tokenizer.json": {"added_tokens": []any{added(30, "<hole>")}}}), `gives "<hole>" the id 30, but the tokens before it make it 21`},
		{"huge id", change(t, "characters", map[string]map[string]any{"tokenizer.json": {"model": map[string]any{"type": "WordLevel", "unk_token": "a", "vocab": map[string]any{"a": 1 << 30}}, "added_tokens": []any{}}}), "not between 0 and"},
		{"deep", must.Folder(t, map[string]string{"tokenizer.json": `{"model":{"vocab":{"a":0}},"normalizer":` + strings.Repeat(`{"x":`, 9000) + "0" + strings.Repeat("}", 9001)}), "from bytes"},
		{"deeper", must.Folder(t, map[string]string{"tokenizer.json": strings.Repeat("[", 1<<20)}), "max depth"},
	}
	for _, tt := range tests {
		_, err := Load(tt.dir)
		expect.True(t, err != nil && strings.Contains(err.Error(), tt.want) && !strings.Contains(err.Error(), "\n"), "%s: %v, want %q", tt.name, err, tt.want)
	}
}

// A tokenizer without an unknown token fails on unknown text, but not on text without tokens.
func TestEncodeRawRefuses(t *testing.T) {
	digits := map[string]any{"type": "WordLevel", "unk_token": "?", "vocab": map[string]any{"1": 0, "2": 1}}
	tok := load(t, change(t, "characters", map[string]map[string]any{"tokenizer.json": {"model": digits, "added_tokens": []any{}}, "tokenizer_config.json": {"eos_token": nil, "pad_token": nil, "unk_token": nil}}))
	ids, err := tok.EncodeRaw("21", true)
	expect.True(t, err == nil && cmp.Equal([]int32{1, 0}, ids), "ids %v, %v", ids, err)
	for text, want := range map[string]string{"2x": "cannot encode", "a\x00": "NUL byte at byte 1", "\xff": "not valid UTF-8 at byte 0"} {
		ids, err := tok.EncodeRaw(text, false)
		expect.True(t, err != nil && strings.Contains(err.Error(), want), "%q: %v, %v, want %q", text, ids, err, want)
		_, _, err = tok.EncodeSpans(text)
		expect.True(t, err != nil, "%q has spans", text)
	}
	blank := load(t, wordpiece)
	ids, err = blank.EncodeRaw(" \t", false)
	expect.True(t, err == nil && len(ids) == 0, "blank text: %v, %v", ids, err)
}

// LlamaClass reports how texts start.
func TestLlamaClass(t *testing.T) {
	for dir, want := range map[string]bool{"llama/first": true, "llama/always": true, "llama/never": true, "llama/mistral": false, "llama/other": false, "bytes": false} {
		expect.Same(t, want, load(t, filepath.Join("testdata", dir)).LlamaClass(), "%s", dir)
	}
	bytes := load(t, change(t, "bytes", config(map[string]any{"tokenizer_class": "LlamaTokenizer"})))
	expect.True(t, !bytes.LlamaClass(), "a tokenizer of bytes is rebuilt")
}

func TestCheckModel(t *testing.T) {
	tok := load(t, "testdata/bytes")
	expect.NoError(t, tok.CheckModel(333), "CheckModel")
	expect.Error(t, tok.CheckModel(331), `"<|im_end|>" has the id 331, but the model's vocab_size is 331`)
}

func TestDecodeRefuses(t *testing.T) {
	tok := load(t, "testdata/bytes")
	d := tok.NewDecoder(false)
	for _, id := range []int32{-1, 333, 1 << 30} {
		expect.Failure(tok.Decode([]int32{1, id}, false))(t, "no token has the id")
		expect.Fails(d.Push(id))(t, "%d is pushed", id)
	}
	characters := load(t, change(t, "characters", map[string]map[string]any{"tokenizer.json": {"model": map[string]any{"type": "WordLevel", "unk_token": "a", "vocab": map[string]any{"a": 0, "\x00": 1}}, "added_tokens": []any{}}}))
	expect.Failure(characters.Decode([]int32{0, 1}, false))(t, "NUL byte")
	tok.Close()
	expect.Failure(tok.Decode([]int32{1}, false))(t, "closed")
}

// A NUL byte cannot pass through the library; it becomes U+FFFD, like invalid UTF-8.
func TestDecodeNUL(t *testing.T) {
	for dir, token := range map[string]string{"testdata/bytes": "Ā", "testdata/fallback": "<0x00>"} {
		tok := load(t, dir)
		ids := must.Get(tok.EncodeRaw("the", false))(t)
		nul, _ := tok.TokenID(token)
		ids = append(append(ids, nul), ids...)
		text, err := tok.Decode(ids, false)
		expect.True(t, err == nil && strings.HasPrefix(text, "the\uFFFD") && strings.HasSuffix(text, "the"), "%s: %q, %v", dir, text, err)
		expect.Same(t, text, pushAll(t, tok, ids, false), "%s: token by token, at once", dir)
	}
}

// A byte-level vocabulary may lack the byte that is never valid, as SmolLM2's does.
func TestDecodeNULWithoutAnInvalidByte(t *testing.T) {
	tok := load(t, "testdata/bytes")
	ids := must.Get(tok.EncodeRaw("the", false))(t)
	nul, _ := tok.TokenID("Ā")
	ids = append(append(append(ids, nul, nul), ids...), nul)
	want := must.Get(tok.Decode(ids, false))(t)
	tok.bytes.invalid = -1
	text, err := tok.Decode(ids, false)
	expect.True(t, err == nil && text == want, "%q, %v; want %q", text, err, want)
	expect.Same(t, text, pushAll(t, tok, ids, false), "token by token, at once")
}

// Push returns only final text: never part of a character, and each character as soon as it is complete.
func TestPush(t *testing.T) {
	tests := []struct {
		dir  string
		ids  func(tok *Tokenizer) []int32
		want []string // the last from Flush
	}{
		{"characters", func(*Tokenizer) []int32 { return []int32{2, 12, 3, 1} }, []string{"0", "+", "1", "<eos>", ""}},
		{"fallback", func(tok *Tokenizer) []int32 {
			return []int32{tok.vocab.ids["▁the"], tok.vocab.ids["<0xC3>"], tok.vocab.ids["<0xA9>"], tok.vocab.ids["▁law"]}
		}, []string{"the", "", "", "é law", ""}},
		{"bytes", func(tok *Tokenizer) []int32 {
			return []int32{tok.vocab.ids["Ã"], tok.vocab.ids["©"], tok.vocab.ids["Ã"]}
		}, []string{"", "é", "", "\uFFFD"}},
	}
	for _, tt := range tests {
		tok := load(t, filepath.Join("testdata", tt.dir))
		d := tok.NewDecoder(false)
		var got []string
		for _, id := range tt.ids(tok) {
			text := must.Get(d.Push(id))(t)
			got = append(got, text)
		}
		expect.Equal(t, tt.want, append(got, must.Get(d.Flush())(t)), tt.dir)
	}
}

// Any settings are read or refused, and tokens keep their ids.
func FuzzTokenizerConfig(f *testing.F) {
	for _, dir := range []string{"bytes", "fallback", "characters", "wordpiece"} {
		data := must.Get(os.ReadFile(filepath.Join("testdata", dir, "tokenizer_config.json")))(f)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fields, err := files.Object(data)
		if err != nil {
			return
		}
		c, err := parseTokenizerConfig(fields, len(data)%2 == 0)
		if err != nil {
			return
		}
		v, err := newVocabulary(map[string]int32{"a": 0, "b": 1}, []addedToken{{ID: 2, Content: "<s>", Special: true}}, c)
		if err != nil {
			return
		}
		for i, token := range v.added {
			expect.True(t, v.ids[token.Content] == token.ID && int(token.ID) < v.size() && v.at[token.Content] == i, "%q has the id %d and is %d of %d", token.Content, token.ID, i, v.size())
		}
	})
}

// For any ids, the decoder's concatenated texts equal Decode.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte("\x00\x03\xe2\x82\xac\x01the"), false)
	f.Add([]byte{233, 160, 180, 0, 233, 160}, true)
	var toks []*Tokenizer
	for _, dir := range []string{"bytes", "fallback", "characters", "wordpiece"} {
		toks = append(toks, load(f, filepath.Join("testdata", dir)))
	}
	f.Fuzz(func(t *testing.T, data []byte, skip bool) {
		for _, tok := range toks {
			ids := make([]int32, min(len(data)/2, 200))
			for i := range ids {
				ids[i] = int32(data[2*i])*int32(len(tok.vocab.known))/256 + int32(data[2*i+1])%3
				ids[i] = min(ids[i], int32(len(tok.vocab.known)-1))
			}
			expect.Same(t, must.Get(tok.Decode(ids, skip))(t), pushAll(t, tok, ids, skip), "%v: token by token, together", ids)
		}
	})
}
