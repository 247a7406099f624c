/* Prints the offsets and numbers of a Perl that daemon/inspect/src/lists/perl_functions.rs has as
 * facts of versions. Compile it against the headers (of Debian: package libperl-dev), or against
 * those of Perl's source with a config.h, git_version.h and what else `make` generates:
 *
 *     gcc -w -D_GNU_SOURCE -I/usr/lib/$(uname -m)-linux-gnu/perl/5.36/CORE tests/layouts/perl.c \
 *         -o perl-layout -lperl && ./perl-layout
 */
#define PERL_NO_INLINE_FUNCTIONS
#include "EXTERN.h"
#include "perl.h"
#include <stddef.h>
#include <stdio.h>

#define NUMBER(name, value) printf("%-28s %zu\n", name, (size_t)(value))
#define OFFSET(type, field) NUMBER(#type "." #field, offsetof(type, field))

int main(void)
{
#ifdef MULTIPLICITY
	NUMBER("info_at", offsetof(struct interpreter, Icurstackinfo));
	NUMBER("place_at", offsetof(struct interpreter, Icurcop));
#endif
	OFFSET(PERL_SI, si_cxstack);
	OFFSET(PERL_SI, si_prev);
	OFFSET(PERL_SI, si_cxix);
	OFFSET(PERL_SI, si_cxmax);
	NUMBER("entry_bytes", sizeof(PERL_CONTEXT));
	OFFSET(PERL_CONTEXT, blk_oldcop);
	OFFSET(PERL_CONTEXT, blk_sub.retop);
	OFFSET(PERL_CONTEXT, blk_sub.cv);
	OFFSET(PERL_CONTEXT, blk_eval.retop);
	OFFSET(PERL_CONTEXT, blk_eval.cv);
	NUMBER("CXt_NULL", CXt_NULL);
	NUMBER("CXt_SUB", CXt_SUB);
	NUMBER("CXt_FORMAT", CXt_FORMAT);
	NUMBER("CXt_EVAL", CXt_EVAL);
#ifdef CXt_DEFER
	NUMBER("CXt_DEFER", CXt_DEFER);
#endif
	NUMBER("IS_BLOCK", CXp_TRYBLOCK);
	OFFSET(XPVCV, xcv_stash);
	OFFSET(XPVCV, xcv_start_u);
	OFFSET(XPVCV, xcv_gv_u);
	OFFSET(XPVCV, xcv_file);
	OFFSET(XPVCV, xcv_flags);
	NUMBER("IS_NAMED", CVf_NAMED);
	OFFSET(XPVGV, xiv_u.xivu_namehek);
	OFFSET(XPVGV, xnv_u.xgv_stash);
	OFFSET(struct hek, hek_len);
	OFFSET(struct hek, hek_key);
	OFFSET(XPVHV, xhv_max);
	OFFSET(struct xpvhv_aux, xhv_name_u);
	OFFSET(struct xpvhv_aux, xhv_name_count);
	NUMBER("body of a hash", sizeof(XPVHV));
	NUMBER("HAS_AUX", SVf_OOK);
	NUMBER("CODE_TYPE", SVt_PVCV);
	NUMBER("FORMAT_TYPE", SVt_PVFM);
	NUMBER("NAME_TYPE", SVt_PVGV);
	NUMBER("HASH_TYPE", SVt_PVHV);
	OFFSET(SV, sv_flags);
	OFFSET(SV, sv_u);
	OFFSET(COP, op_targ);
	OFFSET(COP, cop_line);
#ifdef USE_ITHREADS
	OFFSET(COP, cop_file);
#else
	OFFSET(COP, cop_filegv);
#endif
	NUMBER("OP_NEXTSTATE", OP_NEXTSTATE);
	NUMBER("OP_DBSTATE", OP_DBSTATE);
	return 0;
}
