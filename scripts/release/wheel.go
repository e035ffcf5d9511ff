package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"debug/elf"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/outfile"
)

// The newest versions that packages may need: 2.34 of glibc and 3.4.29 of libstdc++, which are those of RHEL 9. Ubuntu 22.04
// has 2.35 and 3.4.30, Debian 12 has 2.36 and 3.4.30.
const (
	newestGlibc     = 34
	newestLibstdcxx = 29
)

// wheel writes the wheel and returns its path. It has no Python code: pip copies the program and its files to where it
// keeps scripts and data.
func (r *release) wheel() (string, error) {
	glibc, err := r.glibc()
	if err != nil {
		return "", err
	}
	tag := fmt.Sprintf("py3-none-manylinux_2_%d_%s", glibc, machine())
	readme, err := readFile("README.md")
	if err != nil {
		return "", err
	}
	licence, err := readFile("LICENSE")
	if err != nil {
		return "", err
	}
	stem := "rltrain-" + r.version
	data, info := stem+".data/", stem+".dist-info/"
	var members []file
	for _, f := range r.files {
		if name, ok := strings.CutPrefix(f.path, "bin/"); ok {
			members = append(members, file{data + "scripts/" + name, f.data, f.mode})
		} else {
			members = append(members, file{data + "data/" + f.path, f.data, f.mode})
		}
	}
	metadata := strings.ReplaceAll(metadata, "VERSION", r.version) + "\n" + string(readme.data)
	members = append(members,
		file{info + "METADATA", []byte(metadata), 0o644},
		file{info + "WHEEL", []byte("Wheel-Version: 1.0\nGenerator: rltrain\nRoot-Is-Purelib: false\nTag: " + tag + "\n"), 0o644},
		file{info + "licenses/LICENSE", licence.data, 0o644},
		file{info + "licenses/" + othersLicences, licences(r.components), 0o644})
	var record strings.Builder
	for _, m := range members {
		sum := sha256.Sum256(m.data)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", m.path, base64.RawURLEncoding.EncodeToString(sum[:]), len(m.data))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	members = append(members, file{info + "RECORD", []byte(record.String()), 0o644})
	archive, err := r.zip(members)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dist, stem+"-"+tag+".whl")
	return path, outfile.Write(path, archive, 0o644)
}

const metadata = `Metadata-Version: 2.4
Name: rltrain
Version: VERSION
Summary: Fine-tune language models and text classifiers with supervised and reinforcement learning
License-Expression: Apache-2.0
License-File: LICENSE
License-File: LICENSE.third-party
Requires-Python: >=3.8
Project-URL: Source, https://github.com/rltrain/rltrain
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown
`

// zip packs files with the commit's time.
func (r *release) zip(files []file) ([]byte, error) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	w.RegisterCompressor(zip.Deflate, func(out io.Writer) (io.WriteCloser, error) { return flate.NewWriter(out, flate.BestCompression) })
	for _, f := range files {
		header := &zip.FileHeader{Name: f.path, Method: zip.Deflate, Modified: r.commit}
		header.SetMode(f.mode)
		to, err := w.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := to.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// glibc returns the N of the newest version 2.N that the programs and libraries need.
func (r *release) glibc() (newest int, err error) {
	for _, f := range r.files {
		if f.mode&0o111 == 0 {
			continue
		}
		n, err := newestOf(f.data, "GLIBC_2.")
		if err == nil && n == 0 {
			err = errors.New("it names no version of glibc")
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %w", f.path, err)
		}
		cxx, err := newestOf(f.data, "GLIBCXX_3.4.")
		if err != nil {
			return 0, fmt.Errorf("%s: %w", f.path, err)
		}
		if cxx > newestLibstdcxx {
			return 0, fmt.Errorf("%s needs libstdc++ 3.4.%d, newer than 3.4.%d: build on an older system", path.Base(f.path), cxx, newestLibstdcxx)
		}
		if n > newestGlibc {
			return 0, fmt.Errorf("%s needs glibc 2.%d, newer than 2.%d: build on an older system", path.Base(f.path), n, newestGlibc)
		}
		newest = max(newest, n)
	}
	return newest, nil
}

// newestOf returns the largest N of the versions PREFIX + N of the symbols that a program or library needs; 0 if there is none.
func newestOf(data []byte, prefix string) (newest int, err error) {
	program, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	symbols, err := program.DynamicSymbols()
	if err != nil {
		return 0, err
	}
	for _, s := range symbols {
		text, ok := strings.CutPrefix(s.Version, prefix)
		if !ok || s.Section != elf.SHN_UNDEF {
			continue
		}
		minor, _, _ := strings.Cut(text, ".")
		n, err := strconv.Atoi(minor)
		if err != nil {
			return 0, fmt.Errorf("symbol %s: %w", s.Name, err)
		}
		newest = max(newest, n)
	}
	return newest, nil
}
