//! Layouts of runtimes' frames as the bytes that the sampler reads.

use abi::{
    AttributeLayout, ContextLayout, ErlangLayout, FrameLayout, ListLayout, LuaJitLayout,
    PythonLayout, RuntimeLayout,
};

/// A [`RuntimeLayout`], for the library that we ask.
pub type RuntimeBytes = [u8; size_of::<RuntimeLayout>()];

/// The bytes of a layout.
pub fn runtime_bytes(whole: &RuntimeLayout) -> RuntimeBytes {
    let RuntimeLayout { python: layout, frames, list, contexts, erlang, .. } = whole;
    let RuntimeLayout { attributes, luajit, .. } = *whole;
    let PythonLayout { state_at, id_at, frame_at, current_at, block_at, block_bytes, .. } = *layout;
    let PythonLayout { code_at, previous_at, instruction_at, flags_at, step, root, .. } = *layout;
    let PythonLayout { table_at, reserved, .. } = *layout;
    let words = [
        [id_at, frame_at, current_at, block_at, block_bytes],
        [code_at, previous_at, instruction_at, flags_at, step],
    ];
    let words =
        words.into_iter().flatten().chain([table_at]).chain(reserved).flat_map(u16::to_ne_bytes);
    let python = root.to_ne_bytes().into_iter().chain(state_at.to_ne_bytes()).chain(words);
    let FrameLayout { block_at, block_bytes, object_at, object_bytes, .. } = *frames;
    let FrameLayout { object, tag, tag_mask, tag_bits, words, .. } = *frames;
    let [block_at, object_at] = [block_at, object_at].map(i16::to_ne_bytes);
    let [block_bytes, object_bytes] = [block_bytes, object_bytes].map(u16::to_ne_bytes);
    let blocks = [block_at, block_bytes, object_at, object_bytes].into_iter().flatten();
    let words = [object, tag, tag_mask, tag_bits].into_iter().chain(words);
    let mut bytes = [0; size_of::<RuntimeLayout>()];
    let ListLayout { loop_at, loop_bytes, tag, tag_at, saved_at, code_at, .. } = *list;
    let ListLayout { entry_at, first_at, .. } = *list;
    let ListLayout { entry_bytes, function_at, previous_at, instruction_at, .. } = *list;
    let ListLayout { flags_at, step, .. } = *list;
    let state = [entry_at, first_at, entry_bytes];
    let entry = [function_at, previous_at, instruction_at, flags_at, step];
    let offsets = state.into_iter().chain(entry).flat_map(u16::to_ne_bytes);
    let list = loop_at.to_ne_bytes().into_iter().chain(loop_bytes.to_ne_bytes());
    let list = list.chain([tag, tag_at, saved_at, code_at]).chain(offsets);
    let all = python.chain(blocks).chain(words).chain(list).chain(context_bytes(contexts));
    let LuaJitLayout { vm_at, vm_bytes, jit_base_at } = luajit;
    let luajit = [vm_bytes, jit_base_at].into_iter().flat_map(u32::to_ne_bytes);
    let luajit = vm_at.to_ne_bytes().into_iter().chain(luajit);
    let all = all.chain(erlang_bytes(erlang)).chain(attribute_bytes(&attributes)).chain(luajit);
    bytes.iter_mut().zip(all).for_each(|(to, byte)| *to = byte);
    bytes
}

fn context_bytes(contexts: &ContextLayout) -> impl Iterator<Item = u8> {
    let ContextLayout { base, info_at, place_at, row_at, last_at, previous_at, .. } = *contexts;
    let ContextLayout { entry_bytes, caller_at, return_at, sub_at, eval_at, .. } = *contexts;
    let offsets =
        [row_at, last_at, previous_at, entry_bytes, caller_at, return_at, sub_at, eval_at];
    let offsets = offsets.into_iter().flat_map(u16::to_ne_bytes);
    let in_state = [info_at, place_at].into_iter().flat_map(u32::to_ne_bytes);
    base.to_ne_bytes().into_iter().chain(in_state).chain(offsets)
}

fn erlang_bytes(erlang: &ErlangLayout) -> impl Iterator<Item = u8> {
    let ErlangLayout { areas, loop_at, loop_bytes, scheduler_at, exit_at, .. } = *erlang;
    let ErlangLayout { process_at, stack_at, reserved, .. } = *erlang;
    let areas = areas.into_iter().flat_map(|area| [area.start, area.len]);
    let words = areas.chain([loop_at]).flat_map(u64::to_ne_bytes);
    let words = words.chain(loop_bytes.to_ne_bytes()).chain(scheduler_at.to_ne_bytes());
    let offsets = [process_at, stack_at].into_iter().flat_map(u16::to_ne_bytes);
    words.chain(exit_at.to_ne_bytes()).chain(offsets).chain(reserved.to_ne_bytes())
}

fn attribute_bytes(attributes: &AttributeLayout) -> impl Iterator<Item = u8> {
    let AttributeLayout { kind, thread_at, module, m_at, current_at, .. } = *attributes;
    let AttributeLayout { labels_at, module_bytes, reserved, .. } = *attributes;
    let offsets = [m_at, current_at, labels_at, module_bytes].into_iter();
    let words = kind.to_ne_bytes().into_iter().chain(thread_at.to_ne_bytes());
    let words = words.chain(module.to_ne_bytes()).chain(offsets.flat_map(u16::to_ne_bytes));
    words.chain(reserved.to_ne_bytes())
}
