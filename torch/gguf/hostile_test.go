package gguf_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/gguf"
)

// A raw file is written field by field, valid or not.
type raw struct{ bytes.Buffer }

func (r *raw) put(values ...any) *raw {
	for _, v := range values {
		if s, ok := v.(string); ok {
			r.put(uint64(len(s)))
			r.WriteString(s)
			continue
		}
		if err := binary.Write(r, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	return r
}

// header starts a file.
func header(tensors, pairs uint64) *raw {
	r := &raw{}
	r.WriteString("GGUF")
	return r.put(uint32(3), tensors, pairs)
}

// tensor describes a tensor with dimensions dims, fastest first.
func (r *raw) tensor(name string, kind uint32, offset uint64, dims ...uint64) *raw {
	return r.put(name, uint32(len(dims)), dims, kind, offset)
}

// data ends the header and adds n bytes of data.
func (r *raw) data(n int) []byte {
	for r.Len()%32 != 0 {
		r.WriteByte(0)
	}
	return append(r.Bytes(), make([]byte, n)...)
}

func TestOpenRefuses(t *testing.T) {
	const u32, text, array = uint32(4), uint32(8), uint32(9)
	big := uint64(1) << 60
	for name, c := range map[string]struct {
		file []byte
		want []string // parts of the error
	}{
		"empty":                     {nil, []string{"0 bytes"}},
		"another format":            {append([]byte("PK\x03\x04"), make([]byte, 40)...), []string{"GGUF"}},
		"version 1":                 {append([]byte("GGUF\x01\x00\x00\x00"), make([]byte, 40)...), []string{"version 1"}},
		"big-endian":                {append([]byte("GGUF\x00\x00\x00\x03"), make([]byte, 40)...), []string{"big-endian"}},
		"2^60 tensors":              {header(big, 0).data(0), []string{"1152921504606846976 tensors"}},
		"2^60 pairs":                {header(0, big).data(0), []string{"1152921504606846976 metadata"}},
		"more tensors than there":   {header(1<<18, 0).data(64), []string{"tensor"}},
		"more pairs than there":     {header(0, 1<<16).Bytes(), []string{"metadata key 0"}},
		"key of 4 GiB":              {header(0, 1).put(uint64(4) << 30).data(64), []string{"metadata key 0", "4294967296"}},
		"string of 4 GiB":           {header(0, 1).put("general.name", text, uint64(4)<<30).data(64), []string{`"general.name"`, "4294967296"}},
		"array of 2^60":             {header(0, 1).put("a.b", array, u32, big).data(64), []string{`"a.b"`, "1152921504606846976"}},
		"array of 2^60 strings":     {header(0, 1).put("a.b", array, text, big).data(64), []string{`"a.b"`, "1152921504606846976"}},
		"array of arrays":           {header(0, 1).put("a.b", array, array, uint64(1), u32, uint64(0)).data(64), []string{`"a.b"`, "array of arrays"}},
		"unknown kind":              {header(0, 1).put("a.b", uint32(77), uint64(0)).data(64), []string{`"a.b"`, "77"}},
		"unknown kind of elements":  {header(0, 1).put("a.b", array, uint32(77), uint64(1), uint64(0)).data(64), []string{`"a.b"`, "77"}},
		"key twice":                 {header(0, 2).put("a.b", u32, u32, "a.b", u32, u32).data(0), []string{`"a.b"`, "twice"}},
		"empty key":                 {header(0, 1).put("", u32, u32).data(0), []string{"metadata key 0"}},
		"alignment of 3":            {header(0, 1).put("general.alignment", u32, uint32(3)).data(0), []string{"general.alignment", "3"}},
		"alignment of 0":            {header(0, 1).put("general.alignment", u32, uint32(0)).data(0), []string{"general.alignment", "0"}},
		"alignment that is a text":  {header(0, 1).put("general.alignment", text, "32").data(0), []string{"general.alignment", "string"}},
		"tensor twice":              {header(2, 0).tensor("w", 0, 0, 8).tensor("w", 0, 32, 8).data(64), []string{`"w"`, "twice"}},
		"unknown type":              {header(1, 0).tensor("w", 99, 0, 8).data(64), []string{`"w"`, "99"}},
		"unsupported type":          {header(1, 0).tensor("w", 16, 0, 256).data(512), []string{`"w"`, "IQ2_XXS", "Q4_K"}},
		"removed type":              {header(1, 0).tensor("w", 4, 0, 256).data(512), []string{`"w"`, "4"}},
		"no dimensions":             {header(1, 0).tensor("w", 0, 0).data(64), []string{`"w"`, "0 dimensions"}},
		"2^31 dimensions":           {header(1, 0).put("w", uint32(1)<<31).data(64), []string{`"w"`, "2147483648 dimensions"}},
		"dimension of 0":            {header(1, 0).tensor("w", 0, 0, 0).data(64), []string{`"w"`, "dimension of 0"}},
		"dimension of 2^60 twice":   {header(1, 0).tensor("w", 0, 0, big, big).data(64), []string{`"w"`, "2^60"}},
		"2^32 by 2^32":              {header(1, 0).tensor("w", 0, 0, 1<<32, 1<<32).data(64), []string{`"w"`, "2^60"}},
		"rows of half a block":      {header(1, 0).tensor("w", 2, 0, 48).data(64), []string{`"w"`, "48", "32"}},
		"offset outside":            {header(1, 0).tensor("w", 0, 1<<40, 8).data(64), []string{`"w"`, "1099511627776"}},
		"offset of 2^64 - 32":       {header(1, 0).tensor("w", 0, 1<<64-32, 8).data(64), []string{`"w"`, "outside"}},
		"offset not aligned":        {header(1, 0).tensor("w", 0, 4, 8).data(64), []string{`"w"`, "alignment 32"}},
		"data that ends early":      {header(1, 0).tensor("w", 0, 32, 8).data(63), []string{`"w"`, "cut short"}},
		"tensors over one another":  {header(2, 0).tensor("v", 0, 0, 16).tensor("w", 0, 32, 8).data(64), []string{`"v"`, `"w"`, "overlap"}},
		"part that stands alone":    {header(0, 1).put("split.count", uint32(2), uint16(2)).data(0), []string{"split.count", "2"}},
		"name of a tensor of 1 MiB": {header(1, 0).tensor(strings.Repeat("w", 1<<20), 0, 0, 8).data(64), []string{"tensor 0", "1048576"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			must.Do(t, os.WriteFile(path, c.file, 0o644))
			f, err := gguf.Open(path)
			if err == nil {
				f.Close()
				t.Fatal("no error")
			}
			expect.Contains(t, err.Error(), append(c.want, path)...)
		})
	}
}

// A file truncated at any byte is an error, never a panic.
func TestOpenCut(t *testing.T) {
	data := must.Get(os.ReadFile("testdata/split-00001-of-00002.gguf"))(t)
	path := filepath.Join(t.TempDir(), "m.gguf")
	for n := range data {
		must.Do(t, os.WriteFile(path, data[:n], 0o644))
		if f, err := gguf.Open(path); err == nil {
			f.Close()
			t.Fatalf("%d of %d bytes were accepted", n, len(data))
		}
	}
}

func TestOpenRefusesNonFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe.gguf")
	must.Do(t, syscall.Mkfifo(pipe, 0o600))
	for _, path := range []string{dir, pipe, filepath.Join(dir, "none.gguf"), "testdata/types-00001-of-00002.gguf", filepath.Join(dir, "x-00002-of-00001.gguf")} {
		if f, err := gguf.Open(path); err == nil {
			f.Close()
			t.Errorf("%s was opened", path)
		} else if !strings.Contains(err.Error(), filepath.Base(path)[:1]) {
			t.Errorf("%q does not name %s", err, path)
		}
	}
}

// Opening a file with one large array allocates no memory for it.
func TestOpenIsFrugal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	r := header(0, 1).put("a.b", uint32(9), uint32(0), uint64(64<<20))
	must.Do(t, os.WriteFile(path, r.data(64<<20), 0o644))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := gguf.Open(path)
	runtime.ReadMemStats(&after)
	must.Do(t, err)
	defer f.Close()
	used := after.TotalAlloc - before.TotalAlloc
	expect.True(t, used <= 1<<20, "opening took %d bytes", used)
}
