package dataset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// Limits on the sizes that a file claims. The library allocates what a header says before it reads the data, and walks a
// schema recursively.
const (
	maxFooter     = 64 << 20
	maxPageHeader = 16 << 20
	maxPage       = 1 << 30 // bytes, uncompressed
	maxPageValues = 1 << 26
	maxNesting    = 32 // nesting of footer structures; the format uses 8
)

// checkFooter reads the metadata at the end of a file and checks what the library relies on.
func checkFooter(r io.ReaderAt, size int64) (*format.FileMetaData, error) {
	const magic = "PAR1"
	if size == 0 {
		return nil, errors.New("the file is empty; want a Parquet file")
	}
	if size < 12 {
		return nil, fmt.Errorf("not a Parquet file: only %d bytes", size)
	}
	var head [4]byte
	var tail [8]byte
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return nil, fmt.Errorf("reading data set: %w", err)
	}
	if _, err := r.ReadAt(tail[:], size-8); err != nil {
		return nil, fmt.Errorf("reading data set: %w", err)
	}
	switch {
	case string(tail[4:]) == "PARE":
		return nil, errors.New("the Parquet file is encrypted; write it without encryption")
	case string(head[:]) != magic:
		return nil, fmt.Errorf("not a Parquet file: it starts with %q, want %q", head[:], magic)
	case string(tail[4:]) != magic:
		return nil, fmt.Errorf("truncated Parquet file: it ends with %q, want %q; download or write it again", tail[4:], magic)
	}
	length := int64(binary.LittleEndian.Uint32(tail[:]))
	if length > size-12 || length > maxFooter {
		return nil, fmt.Errorf("damaged Parquet file: a footer of %d bytes in a file of %d", length, size)
	}
	footer := make([]byte, length)
	if _, err := r.ReadAt(footer, size-8-length); err != nil {
		return nil, fmt.Errorf("reading data set: %w", err)
	}
	n, err := thriftLength(footer, maxNesting)
	if err != nil {
		return nil, fmt.Errorf("damaged Parquet file: footer: %w", err)
	}
	meta := new(format.FileMetaData)
	if err := guarded(func() error { return thrift.Unmarshal(&thrift.CompactProtocol{}, footer[:n], meta) }); err != nil {
		return nil, fmt.Errorf("damaged Parquet file: footer: %w", err)
	}
	return meta, checkSchema(meta.Schema)
}

// checkSchema bounds the depth of the tree encoded by the elements, which are in depth-first order.
func checkSchema(schema []format.SchemaElement) error {
	var open []int32 // remaining children per level
	for _, element := range schema {
		if len(open) > 0 {
			open[len(open)-1]--
		}
		if n := element.NumChildren; n.Valid && n.V > 0 {
			open = append(open, n.V)
		}
		for len(open) > 0 && open[len(open)-1] == 0 {
			open = open[:len(open)-1]
		}
		if len(open) > maxDepth {
			return fmt.Errorf("the Parquet schema is nested deeper than %d", maxDepth)
		}
	}
	return nil
}

// checkPages compares the page headers of a column chunk with the chunk's metadata and the limits above.
func checkPages(r io.ReaderAt, size int64, meta *format.ColumnMetaData) error {
	at := meta.DataPageOffset
	if meta.DictionaryPageOffset > 0 {
		at = meta.DictionaryPageOffset
	}
	left := meta.TotalCompressedSize
	if at < 4 || left < 0 || at > size || left > size-at {
		return fmt.Errorf("%d bytes of data at offset %d in a file of %d bytes", left, at, size)
	}
	values := int64(0)
	for values < meta.NumValues {
		header, n, err := pageHeader(r, at, left)
		if err != nil {
			return err
		}
		next := n + int64(header.CompressedPageSize)
		if header.CompressedPageSize < 0 || header.UncompressedPageSize < 0 || next > left || header.UncompressedPageSize > maxPage {
			return fmt.Errorf("a page of %d bytes (%d uncompressed) with %d bytes left", header.CompressedPageSize, header.UncompressedPageSize, left)
		}
		at, left = at+next, left-next
		count := int64(0)
		switch header.Type {
		case format.DataPage:
			count = int64(header.DataPageHeader.V.NumValues)
		case format.DataPageV2:
			count = int64(header.DataPageHeaderV2.V.NumValues)
		case format.DictionaryPage:
			if n := header.DictionaryPageHeader.V.NumValues; n < 0 || n > maxPageValues {
				return fmt.Errorf("a dictionary of %d values", n)
			}
		}
		if count < 0 || count > maxPageValues || values+count > meta.NumValues {
			return fmt.Errorf("a page of %d values after %d of %d", count, values, meta.NumValues)
		}
		values += count
	}
	return nil
}

// pageHeader decodes the header at an offset and returns its length.
func pageHeader(r io.ReaderAt, at, left int64) (*format.PageHeader, int64, error) {
	for window := int64(1 << 10); ; window *= 8 {
		b := make([]byte, min(window, left))
		if n, err := r.ReadAt(b, at); n < len(b) {
			return nil, 0, fmt.Errorf("reading a page header: %w", err)
		}
		n, err := thriftLength(b, maxNesting)
		if errors.Is(err, io.ErrUnexpectedEOF) && window < min(left, maxPageHeader) {
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("page header: %w", err)
		}
		header := new(format.PageHeader)
		if err := thrift.Unmarshal(&thrift.CompactProtocol{}, b[:n], header); err != nil {
			return nil, 0, fmt.Errorf("page header: %w", err)
		}
		return header, int64(n), nil
	}
}
